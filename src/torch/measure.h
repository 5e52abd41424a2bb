// What the implementations of the op `measure` share.
#ifndef SLIMGRAD_TORCH_MEASURE_H_
#define SLIMGRAD_TORCH_MEASURE_H_

#include <ATen/core/Tensor.h>

namespace slimgrad::torch_ops {

// Throws InvalidArgument unless x has a type that slimgrad measures.
void check_measurable(const at::Tensor& x);

}  // namespace slimgrad::torch_ops

#endif  // SLIMGRAD_TORCH_MEASURE_H_
