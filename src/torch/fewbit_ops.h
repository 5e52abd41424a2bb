// What the few-bit ops share: the step table as it comes through the dispatcher, and the sizes of
// codes.
#ifndef SLIMGRAD_TORCH_FEWBIT_OPS_H_
#define SLIMGRAD_TORCH_FEWBIT_OPS_H_

#include <ATen/core/Tensor.h>

#include <string_view>

#include "kernels/fewbit.h"

namespace slimgrad::torch_ops {

// 1 to 4 bits for 2, 4, 8 or 16 levels. Throws InvalidArgument for other numbers.
int bits_of_levels(std::string_view op, std::size_t num_levels);

// Throws InvalidArgument unless there are 2^bits - 1 ascending borders without NaN.
kernels::StepLookup lookup_of_borders(std::string_view op, at::ArrayRef<double> borders, bool even);

// The length of the int32 tensor of codes.
c10::SymInt num_code_words(const c10::SymInt& num_values, int bits);

}  // namespace slimgrad::torch_ops

#endif  // SLIMGRAD_TORCH_FEWBIT_OPS_H_
