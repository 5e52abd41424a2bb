// measure by the kernels of src/device: one that reads the array, one that joins what its blocks
// found, and a fill of memory. The result is on the device, and nothing waits for it.
#include "device/measure.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <slimgrad/measure.h>
#include <torch/library.h>

#include "torch/checks.h"
#include "torch/device/device_ops.h"
#include "torch/device/launch.h"
#include "torch/errors.h"
#include "torch/measure/stats_tensor.h"

namespace slimgrad::torch_ops {
namespace {

at::Tensor measure_device(const at::Tensor& x) {
  check_float_dtype(x, "measure");
  const at::Tensor dense = x.is_non_overlapping_and_dense() ? x : x.contiguous();
  const auto size = static_cast<std::uint64_t>(dense.numel());
  const std::uint64_t num_chunks =
      (size + Measurement::kChunkValues - 1) / Measurement::kChunkValues;
  const at::Tensor histogram = filled(LogHistogram::kNumBins, at::kLong, 0, dense);
  const at::Tensor chunks =
      at::empty({static_cast<std::int64_t>(num_chunks * sizeof(kernels::ChunkSums))},
                dense.options().dtype(at::kByte));
  at::Tensor fields = at::empty({kStatsTensorSize}, dense.options().dtype(at::kDouble));
  with_element_type(dense.scalar_type(), [&]<typename T>() {
    start<device::MeasureChunks<T>>({.in = read_by_kernel<T>(dense),
                                     .size = size,
                                     .chunks = written_by_kernel<kernels::ChunkSums>(chunks),
                                     .histogram = written_by_kernel<std::uint64_t>(histogram),
                                     .is_sampled = size > kFullHistogramValues},
                                    dense);
  });
  start<device::FinishMeasure>({.chunks = read_by_kernel<kernels::ChunkSums>(chunks),
                                .histogram = read_by_kernel<std::uint64_t>(histogram),
                                .size = size,
                                .fields = written_by_kernel<double>(fields)},
                               dense);
  return fields;
}

}  // namespace

void register_measure_on_device(torch::Library& m) {
  m.impl("measure", ValueErrors<&measure_device>::call);
}

}  // namespace slimgrad::torch_ops
