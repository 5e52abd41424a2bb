// A gradient through a gate, in place where nothing else holds it.
#ifndef SLIMGRAD_TORCH_DECIDE_PASS_GRADIENT_H_
#define SLIMGRAD_TORCH_DECIDE_PASS_GRADIENT_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "torch/find_op.h"
#include "torch/own_gradient.h"

namespace slimgrad::torch_ops {

// `grad` is the handle that autograd gave, not a copy of it (is_ours()).
inline at::Tensor pass_gradient(const at::Tensor& grad, const at::Tensor& plan,
                                const at::Tensor& stats, std::int64_t stream) {
  if (is_ours(grad)) {
    static const auto op = find_op<void(at::Tensor, at::Tensor, at::Tensor, std::int64_t)>(
        "slimgrad::compress_gradient_");
    op.call(grad, plan, stats, stream);
    return grad;
  }
  static const auto op =
      find_op<at::Tensor(const at::Tensor&, at::Tensor, at::Tensor, std::int64_t)>(
          "slimgrad::compress_gradient");
  return op.call(grad, plan, stats, stream);
}

}  // namespace slimgrad::torch_ops

#endif  // SLIMGRAD_TORCH_DECIDE_PASS_GRADIENT_H_
