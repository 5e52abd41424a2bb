// Checks of tensor arguments, in one place and with one wording.
#ifndef SLIMGRAD_TORCH_CHECKS_H_
#define SLIMGRAD_TORCH_CHECKS_H_

#include <ATen/core/Tensor.h>

#include "base/check.h"

namespace slimgrad::torch_ops {

inline bool is_float_dtype(at::ScalarType type) {
  return type == at::kFloat || type == at::kBFloat16 || type == at::kHalf;
}

// Throws InvalidArgument unless x is float32, bfloat16 or float16.
inline void check_float_dtype(const at::Tensor& x, const char* op) {
  check(is_float_dtype(x.scalar_type()), op, "x of type float32, bfloat16 or float16",
        c10::toString(x.scalar_type()));
}

}  // namespace slimgrad::torch_ops

#endif  // SLIMGRAD_TORCH_CHECKS_H_
