// Few-bit codes of an array (formats/fewbit.h has the layout), and what backward does with them.
//
// A step table with 2^bits levels gives x the code i with borders[i-1] < x <= borders[i], that is,
// the number of borders below x; of |x| if `is_even`. NaN has the highest code, as if it lay above
// all borders: so a ReLU is open there, as torch's is, and hides no NaN that flows back.
//
// Every version gives the same bits: comparisons are exact, and the product of gradient and level
// is one float32 multiplication, rounded once more if the array has 16-bit elements. At most one
// pass over the memory: three bits of a float32 array cost 11 instructions a vector, and less than
// a read from memory.
#ifndef SLIMGRAD_KERNELS_FEWBIT_FEWBIT_H_
#define SLIMGRAD_KERNELS_FEWBIT_FEWBIT_H_

#include <cstdint>
#include <span>

#include <slimgrad/half.h>

#include "formats/fewbit.h"

namespace slimgrad::kernels {

// Borders and levels in float32, as the kernels use them.
struct StepLookup {
  int bits = 1;
  bool is_even = false;
  float borders[15] = {};  // 2^bits - 1, ascending; neighbours may be equal
  float levels[16] = {};   // 2^bits
};

// The code of x: the specification. `bits` are steps.bits, which a caller may know beforehand.
constexpr std::uint32_t code_of(float x, const StepLookup& steps, int bits) {
  if (steps.is_even && x < 0) x = -x;
  std::uint32_t code = 0;
  for (int i = 0; i + 1 < 1 << bits; ++i) code += x <= steps.borders[i] ? 0 : 1;  // NaN: all
  return code;
}

// What flows back through a level: nothing where it is 0, not even Inf and NaN.
constexpr float multiplied(float gradient, float level) {
  return level == 0 ? 0.0f : gradient * level;
}

// Writes the codes of all blocks of `values`, the last one padded with NaN.
// REQUIRES: codes.size() is fewbit::packed_bytes(values.size(), bits) / 4.
template <typename T>
void pack_codes_scalar(std::span<const T> values, const StepLookup& steps,
                       std::span<std::uint32_t> codes) noexcept;
template <typename T>
void pack_codes(std::span<const T> values, const StepLookup& steps,
                std::span<std::uint32_t> codes) noexcept;

// result[i] = gradient[i] * level of code i, and 0 where the level is 0, whatever the gradient:
// where a ReLU is closed nothing flows back, not even Inf and NaN. `result` may be `gradient`.
// REQUIRES: equal sizes, and codes as above.
template <typename T>
void multiply_levels_scalar(std::span<const T> gradient, std::span<const std::uint32_t> codes,
                            const StepLookup& steps, std::span<T> result) noexcept;
template <typename T>
void multiply_levels(std::span<const T> gradient, std::span<const std::uint32_t> codes,
                     const StepLookup& steps, std::span<T> result) noexcept;

// All four exist for float, BFloat16Bits and Float16Bits.

}  // namespace slimgrad::kernels

#endif  // SLIMGRAD_KERNELS_FEWBIT_FEWBIT_H_
