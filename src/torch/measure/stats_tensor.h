// TensorStats as a tensor of float64, the form in which it passes through an op and lives in a
// module's state: the nine numbers in the order of the struct, then the histogram's counts.
// Counts up to 2^53 are exact.
#ifndef SLIMGRAD_TORCH_MEASURE_STATS_TENSOR_H_
#define SLIMGRAD_TORCH_MEASURE_STATS_TENSOR_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include <slimgrad/tensor_stats.h>

namespace slimgrad::torch_ops {

enum StatsField : std::int64_t {
  kCountField,
  kZerosField,
  kNonfiniteField,
  kZeroFractionField,
  kLogMeanField,
  kLogStdField,
  kMaxAbsField,
  kMeanAbsField,
  kMeanSquareField,
  kStatsFields,  // how many there are, and where the histogram begins
};
inline constexpr std::int64_t kStatsTensorSize = kStatsFields + LogHistogram::kNumBins;

// The names of the fields: of those that are whole numbers, which come first, and of the others.
std::tuple<std::vector<std::string>, std::vector<std::string>> stats_fields();

at::Tensor stats_to_tensor(const TensorStats& stats);
// The same into memory for kStatsTensorSize numbers.
void write_stats(const TensorStats& stats, double* fields);

// Throws InvalidArgument, in the name of `op`, unless `tensor` is a float64 tensor of
// kStatsTensorSize elements.
TensorStats stats_from_tensor(const at::Tensor& tensor, const char* op);

}  // namespace slimgrad::torch_ops

#endif  // SLIMGRAD_TORCH_MEASURE_STATS_TENSOR_H_
