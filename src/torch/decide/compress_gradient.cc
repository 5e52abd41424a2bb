// compress_gradient: brings a tensor to the gate (arrays/decide/gate_pass.h) and its state to and
// from the layer's tensors; on a device that has both it starts the kernels that do all of it
// (pass_on_device.cc).
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
#include "torch/decide/state_place.h"
#include "torch/device/device_ops.h"
#include "torch/elements.h"
#include "torch/errors.h"
#include "torch/no_gradient.h"

namespace slimgrad::torch_ops {
namespace {

constexpr const char* kOp = "compress_gradient";

// A tensor without gaps that is written to another one, which may be itself.
class TensorGradient : public TreatedGradient {
 public:
  TensorGradient(const GradientBackend& backend, const at::Tensor& in, const at::Tensor& out)
      : backend_(backend), values_(in), out_(out) {}

  void gather(const kernels::StratifiedSample& sample, std::uint64_t every,
              std::vector<float>& out) override {
    backend_.gather(values_, sample, every, out);
  }
  double max_abs() override { return backend_.max_abs(values_); }
  ApplyCounts apply(const Treatment& treatment) override {
    const ApplyCounts counts = backend_.apply(treatment, values_, out_);
    values_ = out_;
    return counts;
  }
  void leave() override {
    if (!out_.is_same(values_)) out_.copy_(values_);
  }

 private:
  const GradientBackend& backend_;
  at::Tensor values_;
  const at::Tensor& out_;
};

void compress(const GradientBackend& backend, const at::Tensor& grad, const at::Tensor& out,
              const at::Tensor& plan, const at::Tensor& stats, std::int64_t stream) {
  bring_state(grad, plan, stats, kOp);
  if (!grad.is_cpu() && plan.device() == grad.device() && stats.device() == grad.device()) {
    check_form(plan, plan_size(), kOp, "plan");
    check_form(stats, layer_stats_size(), kOp, "stats");
    return pass_on_device(grad, out, plan, stats, stream);
  }
  TensorPass pass(plan, stats, grad.numel(), dtype_of(grad.scalar_type()), stream, kOp);
  TensorGradient gradient(backend, grad, out);
  pass->run(gradient);
  pass.close();
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
  check_meta_state(grad, plan, plan_size(), kOp, "plan");
  check_meta_state(grad, stats, layer_stats_size(), kOp, "stats");
  return is_dense(grad) ? at::empty_like(grad)
                        : at::empty_like(grad, grad.options(), at::MemoryFormat::Contiguous);
}
void compress_gradient_inplace_meta(at::Tensor grad, at::Tensor plan, at::Tensor stats,
                                    std::int64_t) {
  check_meta_state(grad, plan, plan_size(), kOp, "plan");
  check_meta_state(grad, stats, layer_stats_size(), kOp, "stats");
}

}  // namespace

void register_gates_on_device(torch::Library& m) {
  m.impl("compress_gradient", ValueErrors<&compress_gradient<kDeviceBackend>>::call);
  m.impl("compress_gradient_", ValueErrors<&compress_gradient_<kDeviceBackend>>::call);
}

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
