// Checks of tensor arguments, in one place and with one wording.
#ifndef SLIMGRAD_TORCH_CHECKS_H_
#define SLIMGRAD_TORCH_CHECKS_H_

#include <ATen/core/Tensor.h>

#include "base/check.h"

namespace slimgrad::torch_ops {

// Throws InvalidArgument unless x is float32, bfloat16 or float16.
inline void check_float_dtype(const at::Tensor& x, const char* op) {
  const at::ScalarType type = x.scalar_type();
  check(type == at::kFloat || type == at::kBFloat16 || type == at::kHalf, op,
        "x of type float32, bfloat16 or float16", c10::toString(type));
}

}  // namespace slimgrad::torch_ops

#endif  // SLIMGRAD_TORCH_CHECKS_H_
