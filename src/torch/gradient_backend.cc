#include "torch/gradient_backend.h"

#include <ATen/Parallel.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>

#include <slimgrad/measure.h>

#include "kernels/max_magnitude.h"
#include "torch/apply.h"
#include "torch/pieces.h"

namespace slimgrad::torch_ops {
namespace {

constexpr std::int64_t kPositionsAPiece = 4096;

template <typename T>
void gather_as(const at::Tensor& dense, const StratifiedSample& sample, std::uint64_t every,
               std::vector<float>& out) {
  const T* data = dense.const_data_ptr<T>();
  const auto size = static_cast<std::int64_t>((sample.size() + every - 1) / every);
  out.resize(static_cast<std::size_t>(size));
  float* const to = out.data();
  at::parallel_for(0, size, kPositionsAPiece, [&](std::int64_t from, std::int64_t until) {
    const auto first = static_cast<std::uint64_t>(from), last = static_cast<std::uint64_t>(until);
    if (every == 1) {
      // Each is on a cache line of its own, and the CPU cannot guess which: so it is asked for, and
      // read when as many others have been asked for.
      constexpr std::uint64_t kAsked = 32;
      std::uint64_t asked[kAsked] = {};
      sample.visit(first, last, [&](std::uint64_t i, std::uint64_t position) {
        __builtin_prefetch(data + position);
        if (i >= first + kAsked) to[i - kAsked] = static_cast<float>(data[asked[i % kAsked]]);
        asked[i % kAsked] = position;
      });
      for (std::uint64_t i = std::max(first, last - std::min(last, kAsked)); i < last; ++i)
        to[i] = static_cast<float>(data[asked[i % kAsked]]);
    } else {
      for (std::uint64_t i = first; i < last; ++i)
        to[i] = static_cast<float>(data[sample.position(i * every)]);
    }
  });
}

// The values at every `every`-th position of the sample, in storage order.
void gather_cpu(const at::Tensor& dense, const StratifiedSample& sample, std::uint64_t every,
                std::vector<float>& out) {
  switch (dense.scalar_type()) {
    case at::kBFloat16:
      return gather_as<at::BFloat16>(dense, sample, every, out);
    case at::kHalf:
      return gather_as<at::Half>(dense, sample, every, out);
    default:
      return gather_as<float>(dense, sample, every, out);
  }
}

void gather_aten(const at::Tensor& dense, const StratifiedSample& sample, std::uint64_t every,
                 std::vector<float>& out) {
  const auto size = static_cast<std::int64_t>((sample.size() + every - 1) / every);
  at::Tensor positions = at::empty({size}, at::kLong);
  for (std::int64_t i = 0; i < size; ++i)
    positions.mutable_data_ptr<std::int64_t>()[i] =
        static_cast<std::int64_t>(sample.position(static_cast<std::uint64_t>(i) * every));
  const at::Tensor in_memory_order = dense.as_strided({dense.numel()}, {1});
  const at::Tensor values =
      in_memory_order.index_select(0, positions.to(dense.device())).to(at::kCPU, at::kFloat);
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

double max_abs_aten(const at::Tensor& dense) {
  if (dense.numel() == 0) return 0;
  const at::Tensor zero = at::zeros({}, dense.options());
  return at::where(dense.isfinite(), dense.abs(), zero).max().item<double>();
}

// Top-k is a baseline, not a fast path, and the same for every device. NaN compares false with
// everything and so is kept.
const at::Tensor& zero_below(const GradientPlan& plan, const at::Tensor& in,
                             const at::Tensor& out) {
  if (plan.prune != PruneKind::kTopK) return in;
  out.copy_(at::where(in.abs().lt(plan.threshold), at::zeros({}, in.options()), in));
  return out;
}

double largest_finite(at::ScalarType type) {
  switch (type) {
    case at::kBFloat16:
      return static_cast<float>(std::numeric_limits<at::BFloat16>::max());
    case at::kHalf:
      return static_cast<float>(std::numeric_limits<at::Half>::max());
    default:
      return std::numeric_limits<float>::max();
  }
}

// A threshold that the type cannot hold cannot be written either: then the largest value serves,
// and the sparsity falls short of the wanted one.
Application application_of(const GradientPlan& plan, at::ScalarType type, std::uint64_t seed) {
  Application application{.op = "compress_gradient",
                          .threshold = std::nullopt,
                          .quantizer = plan.quantizer,
                          .seed = seed};
  if (plan.prune == PruneKind::kStochastic || plan.prune == PruneKind::kTopKStochastic)
    application.threshold = std::min(plan.threshold, largest_finite(type));
  else if (!plan.quantizer)
    application.threshold = 0;  // nothing is left to do, but the zeros are counted
  return application;
}

ApplyCounts apply_plan_cpu(const GradientPlan& plan, const at::Tensor& in, const at::Tensor& out,
                           std::uint64_t seed) {
  return apply_cpu(application_of(plan, in.scalar_type(), seed), zero_below(plan, in, out), out);
}

ApplyCounts apply_plan_aten(const GradientPlan& plan, const at::Tensor& in, const at::Tensor& out,
                            std::uint64_t seed) {
  at::Tensor counts;
  const Application application = application_of(plan, in.scalar_type(), seed);
  out.copy_(apply_aten(application, zero_below(plan, in, out), &counts));
  counts = counts.cpu();
  const std::int64_t* values = counts.const_data_ptr<std::int64_t>();
  return {.zeros = static_cast<std::uint64_t>(values[0]),
          .at_threshold = static_cast<std::uint64_t>(values[1]),
          .nonfinite = static_cast<std::uint64_t>(values[2])};
}

}  // namespace

const GradientBackend kCpuBackend = {gather_cpu, max_abs_cpu, apply_plan_cpu};
const GradientBackend kAtenBackend = {gather_aten, max_abs_aten, apply_plan_aten};

TensorStats measure_sample(const std::vector<float>& values, std::uint64_t num_values) {
  TensorStats stats = measure(values);
  if (stats.count == 0 || stats.count == num_values) return stats;
  const double ratio = static_cast<double>(num_values) / static_cast<double>(stats.count);
  const auto scaled = [&](std::uint64_t count) {
    return static_cast<std::uint64_t>(std::llround(ratio * static_cast<double>(count)));
  };
  stats.count = num_values;
  stats.zeros = scaled(stats.zeros);
  stats.nonfinite = scaled(stats.nonfinite);
  return stats;
}

}  // namespace slimgrad::torch_ops
