// What the few-bit ops share: checks of their tensors, and the sizes of codes.
//
// Codes follow the storage order of a dense tensor: contiguous, channels-last, transposed. Whatever
// has holes or overlaps is first copied into the layout that torch gives the result.
#ifndef SLIMGRAD_TORCH_FEWBIT_OPS_H_
#define SLIMGRAD_TORCH_FEWBIT_OPS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

#include "arrays/fewbit/fewbit.h"

namespace slimgrad::torch_ops {

// The levels of stepwise_backward, after a check of its arguments.
kernels::StepLookup checked_levels(const char* op, const at::Tensor& grad, const at::Tensor& codes,
                                   at::ArrayRef<double> levels);

// Checks the arguments of invertible_backward.
void check_invertible(const char* op, const at::Tensor& grad, const at::Tensor& y,
                      const at::Tensor& codes);

// The int32 tensor for the codes of x, not yet filled.
at::Tensor empty_codes(const at::Tensor& x, int bits);

// x itself if it is dense, otherwise a copy with the strides that torch gives a result.
at::Tensor dense_like_result(const at::Tensor& x);

}  // namespace slimgrad::torch_ops

#endif  // SLIMGRAD_TORCH_FEWBIT_OPS_H_
