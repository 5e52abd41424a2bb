// compress_gradient: what a gate does to a gradient in backward. Sample, plan, apply, report.
//
// Cost: the sample is a gather of up to 64 Ki values and a fit to them (about 0.1 ms), and, if the
// gradient is quantized, one reading pass for its maximum: the largest values are rare, a sample
// misses them, and saturation would clip exactly what matters most. Then one pass applies the plan.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <cmath>
#include <vector>

#include "base/check.h"
#include "base/hash.h"
#include "torch/apply.h"
#include "torch/checks.h"
#include "torch/errors.h"
#include "torch/gradient_backend.h"
#include "torch/no_gradient.h"
#include "torch/plan_tensor.h"

namespace slimgrad::torch_ops {
namespace {

constexpr const char* kOp = "compress_gradient";
// So many values of the sample are looked at again afterwards, for the report.
constexpr std::uint64_t kReported = 4096;

// Cosine, relative error and bias of what was done, on part of the sample.
void compare(const std::vector<float>& before, std::uint64_t every, const std::vector<float>& after,
             GateReport& report) {
  double xx = 0, xy = 0, yy = 0, relative = 0, shift = 0, magnitude = 0;
  std::int64_t count = 0;
  for (std::size_t i = 0; i < after.size(); ++i) {
    const double x = before[i * every], y = after[i];
    if (!std::isfinite(x)) continue;
    xx += x * x;
    xy += x * y;
    yy += y * y;
    shift += y - x;
    magnitude += std::abs(x);
    if (x == 0) continue;
    relative += std::abs(y - x) / std::abs(x);
    ++count;
  }
  report.cosine = xx > 0 && yy > 0 ? xy / std::sqrt(xx * yy) : 1;
  report.relative_error = count > 0 ? relative / static_cast<double>(count) : 0;
  report.bias = magnitude > 0 ? shift / magnitude : 0;
}

// Writes the compressed gradient into `out`, which may be `grad` itself.
void compress(const GradientBackend& backend, const at::Tensor& grad, const at::Tensor& out,
              const at::Tensor& plan_buffer, const at::Tensor& stats_buffer, std::int64_t stream) {
  // Planning is done on the host; buffers on another device are brought over and written back.
  const at::Tensor plan_tensor = plan_buffer.cpu(), stats_tensor = stats_buffer.cpu();
  PlanState state = read_plan(plan_tensor);
  const GateOptions& options = state.options;
  check_layer_stats(stats_tensor, kOp);
  const auto num_values = static_cast<std::uint64_t>(grad.numel());
  const std::uint64_t draw =
      mix_bits(options.seed ^ mix_bits(static_cast<std::uint64_t>(state.calls) ^
                                       mix_bits(static_cast<std::uint64_t>(stream))));
  const StratifiedSample sample(num_values, static_cast<std::uint64_t>(options.sample_size), draw);

  // Reused by the thread that runs backward: an allocation of this size costs more than the gather.
  static thread_local std::vector<float> before, after;
  backend.gather(grad, sample, 1, before);
  TensorStats stats = measure_sample(before, num_values);
  GateReport report;
  if (options.settings.prune != PruneKind::kNone)
    report.sparsity_wanted = options.settings.sparsity;
  report.sparsity = stats.zero_fraction;
  report.elements = grad.numel();
  report.nonfinite = static_cast<std::int64_t>(stats.nonfinite);
  report.compressed = grad.numel() >= std::max<std::int64_t>(1, options.min_elements) &&
                      state.calls >= options.warmup && stats.num_finite() > 0;
  if (report.compressed) {
    if (options.settings.bits > 0) stats.max_abs = backend.max_abs(grad);
    const bool fresh =
        state.due || (options.refresh_every > 0 && state.calls % options.refresh_every == 0);
    if (fresh) state.in_force = plan_gradient(stats, options.settings);
    state.due = false;
    const GradientPlan plan =
        fresh ? state.in_force : guard_plan(state.in_force, stats, options.settings);
    const ApplyCounts counts = backend.apply(plan, grad, out, draw);
    report.sparsity =
        static_cast<double>(counts.zeros) /
        static_cast<double>(std::max<std::uint64_t>(1, num_values - counts.nonfinite));
    report.at_threshold =
        static_cast<double>(counts.at_threshold) / static_cast<double>(num_values);
    report.nonfinite = static_cast<std::int64_t>(counts.nonfinite);
    if (plan.quantizer)
      report.saturated =
          stats.max_abs > plan.quantizer->scale * plan.quantizer->format.largest() * (1 + 1e-6);
    const std::uint64_t every = (sample.size() + kReported - 1) / kReported;
    backend.gather(out, sample, every, after);
    compare(before, every, after, report);
  } else if (!out.is_same(grad)) {
    out.copy_(grad);
  }
  ++state.calls;
  write_plan(state, plan_tensor);
  write_stats(stats, stats_tensor.mutable_data_ptr<double>());
  write_report(report, stats_tensor);
  if (!plan_buffer.is_cpu()) plan_buffer.copy_(plan_tensor);
  if (!stats_buffer.is_cpu()) stats_buffer.copy_(stats_tensor);
}

template <const GradientBackend& backend>
at::Tensor compress_gradient(const at::Tensor& grad, at::Tensor plan, at::Tensor stats,
                             std::int64_t stream) {
  check_float_dtype(grad, kOp);
  const at::Tensor dense = is_dense(grad) ? grad : grad.contiguous();
  at::Tensor out = at::empty_like(dense);
  compress(backend, dense, out, plan, stats, stream);
  return out;
}

template <const GradientBackend& backend>
void compress_gradient_(at::Tensor grad, at::Tensor plan, at::Tensor stats, std::int64_t stream) {
  check_float_dtype(grad, "compress_gradient_");
  check(is_dense(grad), "compress_gradient_",
        "a gradient that fills its storage without gaps or overlaps", "strides ", grad.strides());
  compress(backend, grad, grad, plan, stats, stream);
}

at::Tensor compress_gradient_meta(const at::Tensor& grad, at::Tensor, at::Tensor, std::int64_t) {
  return is_dense(grad) ? at::empty_like(grad)
                        : at::empty_like(grad, grad.options(), at::MemoryFormat::Contiguous);
}
void compress_gradient_inplace_meta(at::Tensor, at::Tensor, at::Tensor, std::int64_t) {}

}  // namespace

TORCH_LIBRARY_IMPL(slimgrad, CPU, m) {
  m.impl("compress_gradient", ValueErrors<&compress_gradient<kCpuBackend>>::call);
  m.impl("compress_gradient_", ValueErrors<&compress_gradient_<kCpuBackend>>::call);
}
TORCH_LIBRARY_IMPL(slimgrad, CompositeExplicitAutograd, m) {
  m.impl("compress_gradient", ValueErrors<&compress_gradient<kAtenBackend>>::call);
  m.impl("compress_gradient_", ValueErrors<&compress_gradient_<kAtenBackend>>::call);
  m.impl("_compress_gradient_aten", ValueErrors<&compress_gradient<kAtenBackend>>::call);
}
TORCH_LIBRARY_IMPL(slimgrad, Autograd, m) {
  m.impl("compress_gradient", no_gradient());
  m.impl("compress_gradient_", no_gradient());
  m.impl("_compress_gradient_aten", no_gradient());
}
TORCH_LIBRARY_IMPL(slimgrad, Meta, m) {
  m.impl("compress_gradient", compress_gradient_meta);
  m.impl("_compress_gradient_aten", compress_gradient_meta);
  m.impl("compress_gradient_", compress_gradient_inplace_meta);
}

}  // namespace slimgrad::torch_ops
