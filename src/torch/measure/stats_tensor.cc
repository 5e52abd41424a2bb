#include "torch/measure/stats_tensor.h"

#include <ATen/ops/empty.h>

#include "base/check.h"

namespace slimgrad::torch_ops {

std::tuple<std::vector<std::string>, std::vector<std::string>> stats_fields() {
  return {{"count", "zeros", "nonfinite"},
          {"zero_fraction", "log_mean", "log_std", "max_abs", "mean_abs", "mean_square"}};
}

void write_stats(const TensorStats& stats, double* fields) {
  write_numbers(stats, fields);
  for (int bin = 0; bin < LogHistogram::kNumBins; ++bin)
    fields[kStatsFields + bin] = static_cast<double>(stats.histogram.counts[bin]);
}

at::Tensor stats_to_tensor(const TensorStats& stats) {
  at::Tensor tensor = at::empty({kStatsTensorSize}, at::kDouble);
  write_stats(stats, tensor.mutable_data_ptr<double>());
  return tensor;
}

TensorStats stats_from_tensor(const at::Tensor& tensor, const char* op) {
  check(tensor.scalar_type() == at::kDouble && tensor.dim() == 1 &&
            tensor.numel() == kStatsTensorSize,
        op, "a float64 vector of statistics", c10::toString(tensor.scalar_type()), " of shape ",
        tensor.sizes());
  const at::Tensor contiguous = tensor.cpu().contiguous();
  const double* const fields = contiguous.const_data_ptr<double>();
  TensorStats stats;
  stats.count = static_cast<std::uint64_t>(fields[kCountField]);
  stats.zeros = static_cast<std::uint64_t>(fields[kZerosField]);
  stats.nonfinite = static_cast<std::uint64_t>(fields[kNonfiniteField]);
  stats.zero_fraction = fields[kZeroFractionField];
  stats.log_mean = fields[kLogMeanField];
  stats.log_std = fields[kLogStdField];
  stats.max_abs = fields[kMaxAbsField];
  stats.mean_abs = fields[kMeanAbsField];
  stats.mean_square = fields[kMeanSquareField];
  for (int bin = 0; bin < LogHistogram::kNumBins; ++bin)
    stats.histogram.counts[bin] = static_cast<std::uint64_t>(fields[kStatsFields + bin]);
  return stats;
}

}  // namespace slimgrad::torch_ops
