// What the few-bit ops share: the step table as it comes through the dispatcher, the sizes of
// codes, and threads over blocks.
//
// Codes follow the storage order of a dense tensor: contiguous, channels-last, transposed. Whatever
// has holes or overlaps is first copied into the layout that torch gives the result.
#ifndef SLIMGRAD_TORCH_FEWBIT_OPS_H_
#define SLIMGRAD_TORCH_FEWBIT_OPS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

#include "formats/fewbit.h"
#include "kernels/fewbit/fewbit.h"
#include "torch/threads.h"

namespace slimgrad::torch_ops {

// 1 to 4 bits for 2, 4, 8 or 16 levels. Throws InvalidArgument for other numbers.
int bits_of_levels(std::string_view op, std::size_t num_levels);

// Throws InvalidArgument unless there are 2^bits - 1 ascending borders without NaN.
kernels::StepLookup lookup_of_borders(std::string_view op, at::ArrayRef<double> borders, bool even);

// The levels of stepwise_backward, after a check of its arguments.
kernels::StepLookup lookup_of_levels(const char* op, const at::Tensor& grad,
                                     const at::Tensor& codes, at::ArrayRef<double> levels);

// Checks the arguments of invertible_backward.
void check_invertible(const char* op, const at::Tensor& grad, const at::Tensor& y,
                      const at::Tensor& codes);

// The int32 tensor for the codes of x, not yet filled.
at::Tensor empty_codes(const at::Tensor& x, int bits);

// x itself if it is dense, otherwise a copy with the strides that torch gives a result.
at::Tensor dense_like_result(const at::Tensor& x);

// Elements of a dense tensor, and the words that hold their codes.
struct BlockRange {
  std::size_t first_value, num_values, first_word, num_words;
};

// Calls run(range) from several threads for ranges that together cover all blocks.
template <typename Run>
void for_blocks(std::size_t num_values, int bits, const Run& run) {
  for_values<fewbit::kBlockValues>(num_values, [&](std::size_t first, std::size_t count) {
    run(BlockRange{first, count, fewbit::packed_bytes(first, bits) / 4,
                   fewbit::packed_bytes(count, bits) / 4});
  });
}

}  // namespace slimgrad::torch_ops

#endif  // SLIMGRAD_TORCH_FEWBIT_OPS_H_
