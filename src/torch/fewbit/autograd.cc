// Activations that keep a few bits for backward: where codes meet autograd.
//
// What is kept is the codes alone; the input is not. Below the few-bit activation lies a plain one,
// torch's own: that is what runs without gradients, under torch.no_grad() and in the first pass of
// activation checkpointing, at no cost.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <string>
#include <vector>

#include "base/check.h"
#include "torch/checks.h"
#include "torch/errors.h"
#include "torch/fewbit/activation.h"
#include "torch/fewbit/codes_node.h"
#include "torch/fewbit/ops.h"
#include "torch/find_op.h"
#include "torch/second_backward.h"

namespace slimgrad::torch_ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// ---- the ops through the dispatcher, so that tracing sees them ---------------------------------

using ForwardSignature = std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, std::string_view,
                                                            at::ArrayRef<double>,
                                                            at::ArrayRef<double>, bool);
using InplaceSignature = at::Tensor(at::Tensor&, std::string_view, at::ArrayRef<double>,
                                    at::ArrayRef<double>, bool);
std::tuple<at::Tensor, at::Tensor> call_forward(const at::Tensor& x, std::string_view name,
                                                at::ArrayRef<double> params,
                                                at::ArrayRef<double> borders, bool even) {
  static const auto op = find_op<ForwardSignature>("slimgrad::fewbit_forward");
  return op.call(x, name, params, borders, even);
}

at::Tensor call_forward_inplace(at::Tensor& x, std::string_view name, at::ArrayRef<double> params,
                                at::ArrayRef<double> borders, bool even) {
  static const auto op = find_op<InplaceSignature>("slimgrad::fewbit_forward_");
  return op.call(x, name, params, borders, even);
}

// ---- autograd ----------------------------------------------------------------------------------

struct FewbitActivation : Function<FewbitActivation> {
  static constexpr bool is_traceable = true;  // for compiled autograd

  static at::Tensor forward(AutogradContext* context, at::Tensor x, std::string name,
                            std::vector<double> params, std::vector<double> borders,
                            std::vector<double> levels, bool even, bool inplace) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    at::Tensor y, codes;
    if (inplace) {
      codes = call_forward_inplace(x, name, params, borders, even);
      context->mark_dirty({x});
      y = x;
    } else {
      std::tie(y, codes) = call_forward(x, name, params, borders, even);
    }
    save_codes(context, codes, levels, y);
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list& grads) {
    return gradient_of_codes(context, grads, 7);
  }
};

void check_table(const char* op, at::ArrayRef<double> borders, at::ArrayRef<double> levels,
                 bool even) {
  lookup_of_borders(op, borders, even);
  check(levels.size() == borders.size() + 1, op, "one level more than borders", levels.size(),
        " levels and ", borders.size(), " borders");
}

bool needs_grad(const at::Tensor& x) { return at::GradMode::is_enabled() && x.requires_grad(); }

at::Tensor fewbit_activation_autograd(const at::Tensor& x, std::string_view name,
                                      at::ArrayRef<double> params, at::ArrayRef<double> borders,
                                      at::ArrayRef<double> levels, bool even) {
  check_table("fewbit_activation", borders, levels, even);
  if (needs_grad(x))
    return FewbitActivation::apply(x, std::string(name), params.vec(), borders.vec(), levels.vec(),
                                   even, false);
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  static const auto op =
      find_op<at::Tensor(const at::Tensor&, std::string_view, at::ArrayRef<double>,
                         at::ArrayRef<double>, at::ArrayRef<double>, bool)>(
          "slimgrad::fewbit_activation");
  return op.call(x, name, params, borders, levels, even);
}

void fewbit_activation_inplace_autograd(at::Tensor& x, std::string_view name,
                                        at::ArrayRef<double> params, at::ArrayRef<double> borders,
                                        at::ArrayRef<double> levels, bool even) {
  check_table("fewbit_activation_", borders, levels, even);
  if (needs_grad(x)) {
    torch::autograd::check_inplace(x, true);  // apply() asks too, but only after it has written
    FewbitActivation::apply(x, std::string(name), params.vec(), borders.vec(), levels.vec(), even,
                            true);
    return;
  }
  static const auto op =
      find_op<void(at::Tensor&, std::string_view, at::ArrayRef<double>, at::ArrayRef<double>,
                   at::ArrayRef<double>, bool)>("slimgrad::fewbit_activation_");
  {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    op.call(x, name, params, borders, levels, even);
  }
  if (!x.is_inference()) x.unsafeGetTensorImpl()->bump_version();
}

// A gradient of the gradient is asked for only by a second backward, so the error waits for it.
// With gradient mode on inside a backward, as a Python function that keeps codes has it, the result
// depends on the function's input too.
at::Tensor stepwise_backward_autograd(const at::Tensor& grad, const at::Tensor& codes,
                                      at::ArrayRef<double> levels, c10::SymIntArrayRef strides) {
  at::Tensor result;
  {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    result = call_stepwise_backward(grad, codes, levels, strides);
  }
  if (needs_grad(grad) || torch::autograd::get_current_node()) refuse_second_backward(result, grad);
  return result;
}

// ---- without gradients -------------------------------------------------------------------------

at::Tensor plain_activation(const at::Tensor& x, std::string_view name, at::ArrayRef<double> params,
                            at::ArrayRef<double>, at::ArrayRef<double>, bool) {
  check_float_dtype(x, name);
  at::Tensor y = at::empty_like(x);
  Activation("fewbit_activation", name, params).apply(x, y);
  return y;
}

void plain_activation_(at::Tensor& x, std::string_view name, at::ArrayRef<double> params,
                       at::ArrayRef<double>, at::ArrayRef<double>, bool) {
  check_float_dtype(x, name);
  const Activation activation("fewbit_activation_", name, params);
  activation.check_inplace("fewbit_activation_");
  activation.apply(x, x);
}

}  // namespace

TORCH_LIBRARY_IMPL(slimgrad, Autograd, m) {
  m.impl("fewbit_activation", ValueErrors<&fewbit_activation_autograd>::call);
  m.impl("fewbit_activation_", ValueErrors<&fewbit_activation_inplace_autograd>::call);
  m.impl("stepwise_backward", ValueErrors<&stepwise_backward_autograd>::call);
}

TORCH_LIBRARY_IMPL(slimgrad, CompositeExplicitAutograd, m) {
  m.impl("fewbit_activation", ValueErrors<&plain_activation>::call);
  m.impl("fewbit_activation_", ValueErrors<&plain_activation_>::call);
}

}  // namespace slimgrad::torch_ops
