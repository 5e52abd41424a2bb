#include "torch/fewbit/codes_node.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_like.h>

#include <utility>

#include "torch/find_op.h"
#include "torch/own_gradient.h"
#include "torch/second_backward.h"

namespace slimgrad::torch_ops {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor codes_of_steps(const at::Tensor& x, at::ArrayRef<double> borders, bool even) {
  static const auto op = find_op<at::Tensor(const at::Tensor&, at::ArrayRef<double>, bool)>(
      "slimgrad::stepwise_codes");
  return op.call(x, borders, even);
}

at::Tensor call_stepwise_backward(const at::Tensor& grad, const at::Tensor& codes,
                                  at::ArrayRef<double> levels, c10::SymIntArrayRef strides) {
  static const auto op =
      find_op<at::Tensor(const at::Tensor&, const at::Tensor&, at::ArrayRef<double>,
                         c10::SymIntArrayRef)>("slimgrad::stepwise_backward");
  return op.call(grad, codes, levels, strides);
}

namespace {

void call_stepwise_backward_inplace(at::Tensor& grad, const at::Tensor& codes,
                                    at::ArrayRef<double> levels) {
  static const auto op = find_op<void(at::Tensor&, const at::Tensor&, at::ArrayRef<double>)>(
      "slimgrad::stepwise_backward_");
  op.call(grad, codes, levels);
}

}  // namespace

std::vector<c10::SymInt> strides_of_codes(const at::Tensor& y) {
  if (y.is_non_overlapping_and_dense()) return y.sym_strides().vec();
  return at::empty_like(y, y.options().device(at::kMeta)).sym_strides().vec();
}

void save_codes(AutogradContext* context, const at::Tensor& codes,
                const std::vector<double>& levels, const at::Tensor& like) {
  context->save_for_backward({codes});
  context->saved_data["levels"] = levels;
  context->saved_data["strides"] = strides_of_codes(like);
}

variable_list gradient_of_codes(AutogradContext* context, variable_list& grads,
                                std::size_t num_inputs) {
  variable_list result(num_inputs);
  at::Tensor grad = take_gradient(grads);
  if (!grad.defined()) return result;
  const at::Tensor codes = context->get_saved_variables()[0];
  const std::vector<double> levels = context->saved_data["levels"].toDoubleVector();
  const std::vector<c10::SymInt> strides = context->saved_data["strides"].toSymIntVector();
  if (is_ours(grad) && grad.sym_strides() == strides) {
    call_stepwise_backward_inplace(grad, codes, levels);
    result[0] = std::move(grad);
  } else {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    result[0] = call_stepwise_backward(grad, codes, levels, strides);
  }
  refuse_second_backward(result[0], grad);
  return result;
}

}  // namespace slimgrad::torch_ops
