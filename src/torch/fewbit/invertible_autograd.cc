// The invertible mode of GELU, SiLU and Mish saves the output, which the next layer often saves
// anyway, and one bit per element. It needs less memory exactly where another layer saves the
// output too, such as a linear layer behind; elsewhere it costs a bit more than torch.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <string>

#include "math/fewbit/inverse_table.h"
#include "torch/checks.h"
#include "torch/errors.h"
#include "torch/fewbit/activation.h"
#include "torch/find_op.h"
#include "torch/own_gradient.h"
#include "torch/second_backward.h"

namespace slimgrad::torch_ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor invertible_forward_alone(const at::Tensor& x, std::string_view name) {
  check_float_dtype(x, name);
  inverse_table(name);  // refuses what cannot be inverted
  at::Tensor y = at::empty_like(x);
  Activation("invertible_activation", name, {}).apply(x, y);
  return y;
}

// ---- autograd ----------------------------------------------------------------------------------

at::Tensor call_backward(const at::Tensor& grad, const at::Tensor& y, const at::Tensor& codes,
                         std::string_view name) {
  static const auto op = find_op<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                            std::string_view)>("slimgrad::invertible_backward");
  return op.call(grad, y, codes, name);
}

void call_backward_inplace(at::Tensor& grad, const at::Tensor& y, const at::Tensor& codes,
                           std::string_view name) {
  static const auto op =
      find_op<void(at::Tensor&, const at::Tensor&, const at::Tensor&, std::string_view)>(
          "slimgrad::invertible_backward_");
  op.call(grad, y, codes, name);
}

struct InvertibleActivation : torch::autograd::Function<InvertibleActivation> {
  static constexpr bool is_traceable = true;  // for compiled autograd

  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, std::string name) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    static const auto op = find_op<std::tuple<at::Tensor, at::Tensor>(
        const at::Tensor&, std::string_view, at::ArrayRef<double>, at::ArrayRef<double>, bool)>(
        "slimgrad::fewbit_forward");
    const double border = inverse_table(name).minimizer;
    auto [y, codes] = op.call(x, name, {}, border, false);
    context->save_for_backward({y, codes});
    context->saved_data["name"] = name;
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list& grads) {
    variable_list result(2);
    at::Tensor grad = take_gradient(grads);
    if (!grad.defined()) return result;
    const variable_list saved = context->get_saved_variables();
    const std::string name = context->saved_data["name"].toStringRef();
    if (is_ours(grad) && grad.sym_strides() == saved[0].sym_strides()) {
      call_backward_inplace(grad, saved[0], saved[1], name);
      result[0] = std::move(grad);
    } else {
      at::AutoDispatchBelowADInplaceOrView below_autograd;
      result[0] = call_backward(grad, saved[0], saved[1], name);
    }
    refuse_second_backward(result[0], grad);
    return result;
  }
};

at::Tensor invertible_activation_autograd(const at::Tensor& x, std::string_view name) {
  if (at::GradMode::is_enabled() && x.requires_grad())
    return InvertibleActivation::apply(x, std::string(name));
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  static const auto op =
      find_op<at::Tensor(const at::Tensor&, std::string_view)>("slimgrad::invertible_activation");
  return op.call(x, name);
}

}  // namespace

TORCH_LIBRARY_IMPL(slimgrad, CompositeExplicitAutograd, m) {
  m.impl("invertible_activation", ValueErrors<&invertible_forward_alone>::call);
}
TORCH_LIBRARY_IMPL(slimgrad, Autograd, m) {
  m.impl("invertible_activation", ValueErrors<&invertible_activation_autograd>::call);
}

}  // namespace slimgrad::torch_ops
