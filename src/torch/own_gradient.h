// When a backward may write its result over the gradient that came in. A fresh tensor costs more
// than the arithmetic: 64 MiB of new pages take ten times as long as the multiplication itself.
#ifndef SLIMGRAD_TORCH_OWN_GRADIENT_H_
#define SLIMGRAD_TORCH_OWN_GRADIENT_H_

#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

namespace slimgrad::torch_ops {

// Takes the only gradient out of the list that the autograd node hands to backward. A backward that
// takes the list by value works on a copy, while the node keeps a handle: the gradient would never
// be its own. So backward takes the list by reference, and this leaves it empty.
inline at::Tensor take_gradient(torch::autograd::variable_list& grads) {
  at::Tensor grad = std::move(grads[0]);
  grads[0].reset();
  return grad;
}

// Whether nothing else holds the tensor or its memory, it has no holes, and it is a plain tensor
// that is not traced. With retain_graph=True it may be overwritten too: the next backward comes
// with a gradient of its own.
inline bool is_ours(const at::Tensor& grad) {
  return !at::GradMode::is_enabled() && grad.use_count() == 1 && !at::isTensorSubclassLike(grad) &&
         !c10::impl::TorchDispatchModeTLS::any_modes_set() && grad.has_storage() &&
         grad.storage().use_count() == 1 && !grad.requires_grad() &&
         grad.is_non_overlapping_and_dense();
}

}  // namespace slimgrad::torch_ops

#endif  // SLIMGRAD_TORCH_OWN_GRADIENT_H_
