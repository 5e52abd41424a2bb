#include "torch/decide/gradient_backend.h"

#include <ATen/ops/abs.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <mutex>

#include "device/measure.h"
#include "kernels/measure/gather.h"
#include "kernels/measure/magnitude_range.h"
#include "torch/apply/apply.h"
#include "torch/device/launch.h"
#include "torch/elements.h"
#include "torch/threads.h"

namespace slimgrad::torch_ops {
namespace {

constexpr std::size_t kPositionsAPiece = 4096;

void gather_cpu(const at::Tensor& dense, const kernels::StratifiedSample& sample,
                std::uint64_t every, std::vector<float>& out) {
  out.resize((sample.size() + every - 1) / every);
  with_element_type(dense.scalar_type(), [&]<typename T>() {
    const T* const data = elements<T>(dense).data();
    for_ranges(out.size(), kPositionsAPiece, [&](std::size_t first, std::size_t last) {
      kernels::gather_every(data, sample, every, first, last, out.data());
    });
  });
}

void gather_aten(const at::Tensor& dense, const kernels::StratifiedSample& sample,
                 std::uint64_t every, std::vector<float>& out) {
  const auto size = static_cast<std::int64_t>((sample.size() + every - 1) / every);
  at::Tensor positions = at::empty({size}, at::kLong);
  for (std::int64_t i = 0; i < size; ++i)
    positions.mutable_data_ptr<std::int64_t>()[i] =
        static_cast<std::int64_t>(sample.position(static_cast<std::uint64_t>(i) * every));
  const at::Tensor in_memory_order = dense.as_strided({dense.numel()}, {1});
  const at::Tensor values =
      in_memory_order.index_select(0, positions.to(dense.device(), true)).to(at::kCPU, at::kFloat);
  out.assign(values.const_data_ptr<float>(), values.const_data_ptr<float>() + size);
}

double max_abs_cpu(const at::Tensor& dense) {
  float max = 0;
  std::mutex mutex;
  with_element_type(dense.scalar_type(), [&]<typename T>() {
    const std::span<const T> values = elements<T>(dense);
    for_pieces(values.size(), [&](std::size_t first, std::size_t num_values) {
      const float piece = kernels::max_magnitude(values.subspan(first, num_values));
      const std::lock_guard lock(mutex);
      max = std::max(max, piece);
    });
  });
  return max;
}

double max_abs_device(const at::Tensor& dense) {
  // The bits of the largest magnitude, and how many are not finite.
  const at::Tensor found = filled(2, at::kInt, 0, dense);
  with_element_type(dense.scalar_type(), [&]<typename T>() {
    auto* const words = written_by_kernel<std::uint32_t>(found);
    start<device::MaxMagnitude<T>>({.in = read_by_kernel<T>(dense),
                                    .size = static_cast<std::uint64_t>(dense.numel()),
                                    .max_bits = words,
                                    .num_nonfinite = words + 1},
                                   dense);
  });
  return kernels::magnitude_value(static_cast<std::uint32_t>(found[0].item<std::int32_t>()));
}

double max_abs_aten(const at::Tensor& dense) {
  if (dense.numel() == 0) return 0;
  const at::Tensor zero = at::zeros({}, dense.options());
  return at::where(dense.isfinite(), dense.abs(), zero).max().item<double>();
}

ApplyCounts apply_cpu_to(const Treatment& treatment, const at::Tensor& in, const at::Tensor& out) {
  return apply_cpu("compress_gradient", treatment, in, out);
}

ApplyCounts counts_on_host(const at::Tensor& counts) {
  const at::Tensor here = counts.cpu();
  const std::int64_t* values = here.const_data_ptr<std::int64_t>();
  return {.zeros = static_cast<std::uint64_t>(values[0]),
          .at_threshold = static_cast<std::uint64_t>(values[1]),
          .nonfinite = static_cast<std::uint64_t>(values[2])};
}

ApplyCounts apply_device_to(const Treatment& treatment, const at::Tensor& in,
                            const at::Tensor& out) {
  at::Tensor counts;
  apply_device("compress_gradient", treatment, in, out, &counts);
  return counts_on_host(counts);
}

ApplyCounts apply_aten_to(const Treatment& treatment, const at::Tensor& in, const at::Tensor& out) {
  at::Tensor counts;
  out.copy_(apply_aten("compress_gradient", treatment, in, &counts));
  return counts_on_host(counts);
}

}  // namespace

const GradientBackend kCpuBackend = {gather_cpu, max_abs_cpu, apply_cpu_to};
const GradientBackend kDeviceBackend = {gather_aten, max_abs_device, apply_device_to};
const GradientBackend kAtenBackend = {gather_aten, max_abs_aten, apply_aten_to};

}  // namespace slimgrad::torch_ops
