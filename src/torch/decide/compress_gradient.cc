// compress_gradient: brings a tensor to the gate (arrays/decide/gate_pass.h) and its state to and
// from the layer's tensors, which are on the CPU while the gradient may be anywhere.
//
// Cost: that of the sample; if the gradient is quantized, one reading pass for its maximum; and one
// pass that applies the treatment.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <vector>

#include "arrays/decide/gate_pass.h"
#include "base/check.h"
#include "torch/apply/apply.h"
#include "torch/checks.h"
#include "torch/decide/gradient_backend.h"
#include "torch/decide/plan_tensor.h"
#include "torch/elements.h"
#include "torch/errors.h"
#include "torch/no_gradient.h"

namespace slimgrad::torch_ops {
namespace {

constexpr const char* kOp = "compress_gradient";

// Writes the compressed gradient into `out`, which may be `grad` itself.
void compress(const GradientBackend& backend, const at::Tensor& grad, const at::Tensor& out,
              const at::Tensor& plan, const at::Tensor& stats, std::int64_t stream) {
  check_layer_stats(stats, kOp);
  GateState gate = begin_pass(plan, kOp);
  GatePass pass(gate, static_cast<std::uint64_t>(grad.numel()), dtype_of(grad.scalar_type()),
                stream);
  const kernels::StratifiedSample sample = pass.sample();
  // Reused by the thread that runs backward: an allocation of this size costs more than the gather.
  static thread_local std::vector<float> before, after;
  backend.gather(grad, sample, 1, before);
  if (pass.see(before) && pass.is_open()) {
    if (pass.wants_max_abs()) pass.set_max_abs(backend.max_abs(grad));
    pass.treated(backend.apply(pass.decide(), grad, out));
    const std::uint64_t every = (sample.size() + GatePass::kCompared - 1) / GatePass::kCompared;
    backend.gather(out, sample, every, after);
    pass.compare(before, every, after);
  } else if (!out.is_same(grad)) {
    out.copy_(grad);
  }
  const GateReport report = pass.close();
  const auto lock = lock_plans();
  end_pass(gate, plan);
  write_stats(pass.stats(), stats.mutable_data_ptr<double>());
  write_report(report, stats);
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

at::Tensor compress_gradient_meta(const at::Tensor& grad, at::Tensor plan, at::Tensor stats,
                                  std::int64_t) {
  check_meta_state(grad, plan, kPlanSize, kOp, "plan");
  check_meta_state(grad, stats, kLayerStatsSize, kOp, "stats");
  return is_dense(grad) ? at::empty_like(grad)
                        : at::empty_like(grad, grad.options(), at::MemoryFormat::Contiguous);
}
void compress_gradient_inplace_meta(at::Tensor grad, at::Tensor plan, at::Tensor stats,
                                    std::int64_t) {
  check_meta_state(grad, plan, kPlanSize, kOp, "plan");
  check_meta_state(grad, stats, kLayerStatsSize, kOp, "stats");
}

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
  m.impl("compress_gradient", ValueErrors<&compress_gradient_meta>::call);
  m.impl("_compress_gradient_aten", ValueErrors<&compress_gradient_meta>::call);
  m.impl("compress_gradient_", ValueErrors<&compress_gradient_inplace_meta>::call);
}

}  // namespace slimgrad::torch_ops
