// Few-bit codes of an activation's input, and the backward pass that needs no more than them.
// steps.h has the tables; the layers of torch.h do the same for tensors, on several threads.
//
//   const StepTable table = layer_steps("gelu", {}, 3);
//   std::vector<std::uint32_t> codes(num_code_words(x.size(), table));
//   stepwise_codes(x, table, codes);                       // forward: keep the codes, not x
//   stepwise_backward(gradient, codes, table, gradient);   // gradient *= the level of each code
//
// A table of 2^bits levels, 1 to 4 bits, gives x the number of borders below it as its code; of |x|
// if the table is even. NaN has the highest code. src/formats/fewbit.h draws the layout.
//
// Every CPU gives the same bits. All functions may be called
// from several threads at once.
#ifndef SLIMGRAD_FEWBIT_H_
#define SLIMGRAD_FEWBIT_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include <slimgrad/half.h>
#include <slimgrad/steps.h>

namespace slimgrad {

// ceil(num_values / 512) * 16 * bits. Throws InvalidArgument for a table without 2, 4, 8 or 16
// levels and one border less.
std::size_t num_code_words(std::size_t num_values, const StepTable& table);

// Throws InvalidArgument unless codes.size() == num_code_words(in.size(), table), and for borders
// that do not ascend.
void stepwise_codes(std::span<const float> in, const StepTable& table,
                    std::span<std::uint32_t> codes);
void stepwise_codes(std::span<const BFloat16Bits> in, const StepTable& table,
                    std::span<std::uint32_t> codes);
void stepwise_codes(std::span<const Float16Bits> in, const StepTable& table,
                    std::span<std::uint32_t> codes);

// result[i] = gradient[i] times the level of code i, and 0 where the level is 0, whatever the
// gradient is. `result` is `gradient` itself or does not overlap it. Throws InvalidArgument for
// sizes that differ, and as above.
void stepwise_backward(std::span<const float> gradient, std::span<const std::uint32_t> codes,
                       const StepTable& table, std::span<float> result);
void stepwise_backward(std::span<const BFloat16Bits> gradient, std::span<const std::uint32_t> codes,
                       const StepTable& table, std::span<BFloat16Bits> result);
void stepwise_backward(std::span<const Float16Bits> gradient, std::span<const std::uint32_t> codes,
                       const StepTable& table, std::span<Float16Bits> result);

// For "gelu", "gelu_tanh", "silu" and "mish": the gradient times the derivative at the input, from
// the output and one bit, which says on which side of the function's minimum the input lies. The
// first call of a name takes some ten milliseconds. `result` is `gradient` itself or overlaps
// neither it nor `output`. Throws InvalidArgument for other names and for sizes that differ.
void invertible_backward(std::span<const float> gradient, std::span<const float> output,
                         std::span<const std::uint32_t> codes, std::string_view activation,
                         std::span<float> result);
void invertible_backward(std::span<const BFloat16Bits> gradient,
                         std::span<const BFloat16Bits> output, std::span<const std::uint32_t> codes,
                         std::string_view activation, std::span<BFloat16Bits> result);
void invertible_backward(std::span<const Float16Bits> gradient, std::span<const Float16Bits> output,
                         std::span<const std::uint32_t> codes, std::string_view activation,
                         std::span<Float16Bits> result);
// The table of that one bit, for stepwise_codes().
StepTable side_of_minimum(std::string_view activation);

}  // namespace slimgrad

#endif  // SLIMGRAD_FEWBIT_H_
