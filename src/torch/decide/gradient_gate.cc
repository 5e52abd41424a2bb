// gradient_gate: the identity forward; in backward the gradient goes through compress_gradient.
//
// Eager mode copies neither the activation (forward returns an alias) nor, where nothing else holds
// it, the gradient (backward works in place). A compiled graph sees an aten.alias and the
// functional backward op. The gate itself is never in a compiled graph: its autograd kernel is
// traced through.
#include <ATen/core/Tensor.h>
#include <ATen/ops/alias.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <slimgrad/gradient_gate.h>

#include "torch/checks.h"
#include "torch/decide/pass_gradient.h"
#include "torch/decide/plan_tensor.h"
#include "torch/decide/state_place.h"
#include "torch/errors.h"
#include "torch/find_op.h"
#include "torch/own_gradient.h"
#include "torch/second_backward.h"

namespace slimgrad::torch_ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class Gate : public torch::autograd::Function<Gate> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& plan,
                            const at::Tensor& stats, std::int64_t stream) {
    context->set_materialize_grads(false);
    context->saved_data["plan"] = plan;
    context->saved_data["stats"] = stats;
    context->saved_data["stream"] = stream;
    at::AutoDispatchBelowADInplaceOrView guard;
    at::Tensor y = at::alias(x);
    // An in-place operation on y, such as the ReLU behind a layer, also changes x: with one version
    // counter autograd notices if x was kept for backward.
    if (!x.is_inference())
      y.unsafeGetTensorImpl()->set_version_counter(x.unsafeGetTensorImpl()->version_counter());
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list& grads) {
    check_first_backward("gradient_gate");
    variable_list result(4);
    const at::Tensor grad = take_gradient(grads);
    if (!grad.defined()) return result;
    result[0] = pass_gradient(grad, context->saved_data["plan"].toTensor(),
                              context->saved_data["stats"].toTensor(),
                              context->saved_data["stream"].toInt());
    return result;
  }
};

at::Tensor gate_autograd(const at::Tensor& x, const at::Tensor& plan, const at::Tensor& stats,
                         std::int64_t stream) {
  check_float_dtype(x, "gradient_gate");
  bring_state(x, plan, stats, "gradient_gate");
  check_gate(x, plan, stats, "gradient_gate");
  return Gate::apply(x, plan, stats, stream);
}

// Without autograd there is no gradient to gate. An op must not return its argument, so this
// copies; callers skip the gate where gradients are off.
at::Tensor gate_plain(const at::Tensor& x, const at::Tensor&, const at::Tensor&, std::int64_t) {
  return x.clone();
}

}  // namespace

TORCH_LIBRARY_IMPL(slimgrad, CompositeExplicitAutograd, m) { m.impl("gradient_gate", gate_plain); }
TORCH_LIBRARY_IMPL(slimgrad, Autograd, m) {
  m.impl("gradient_gate", ValueErrors<&gate_autograd>::call);
}

}  // namespace slimgrad::torch_ops

namespace slimgrad {

at::Tensor gradient_gate(const at::Tensor& x, const at::Tensor& plan, const at::Tensor& stats,
                         std::int64_t stream) {
  static const auto op =
      torch_ops::find_op<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                    std::int64_t)>("slimgrad::gradient_gate");
  return torch_ops::invalid_arguments([&] { return op.call(x, plan, stats, stream); });
}

}  // namespace slimgrad
