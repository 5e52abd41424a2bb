// Uniform quantizing: values as integers of at most 8 bits, and back. T is float, BFloat16Bits or
// Float16Bits. noexcept, no allocation, any thread; the same on every CPU.
#ifndef SLIMGRAD_KERNELS_CODING_UNIFORM_H_
#define SLIMGRAD_KERNELS_CODING_UNIFORM_H_

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>

#include "base/rng.h"
#include "formats/value_types.h"

namespace slimgrad::kernels {

// ---- the rules, for one value; the specification ---------------------------------------------

// A float32 of 1.5 * 2^23 counts in ones: adding it rounds to an integer, ties to even, and leaves
// that in the low bits.
inline constexpr float kRoundToInteger = 0x1.8p23f;
constexpr std::uint32_t uniform_offset(int half) {
  return static_cast<std::uint32_t>(half) - std::bit_cast<std::uint32_t>(kRoundToInteger);
}
// There is an odd number of levels, 2 half + 1, with zero in the middle.
constexpr int uniform_half(int bits) { return (1 << (bits - 1)) - 1; }
constexpr float uniform_quotient(float x, float step, int half) {
  const auto limit = static_cast<float>(half);
  return std::min(std::max(x / step, -limit), limit);
}
constexpr std::uint8_t uniform_symbol(float x, float step, int half) {
  const float rounded = uniform_quotient(x, step, half) + kRoundToInteger;
  return static_cast<std::uint8_t>(std::bit_cast<std::uint32_t>(rounded) + uniform_offset(half));
}
// `random` is a RandomStream, or a DrawnStream at `index`.
template <class Random>
constexpr std::uint8_t uniform_symbol(float x, float step, int half, const Random& random,
                                      std::uint64_t index) {
  const float quotient = uniform_quotient(x, step, half);
  int below = static_cast<int>(quotient);  // towards zero
  if (static_cast<float>(below) > quotient) --below;
  const bool up = random.happens(index, quotient - static_cast<float>(below));
  return static_cast<std::uint8_t>(below + (up ? 1 : 0) + half);
}
constexpr float uniform_value(std::uint8_t symbol, float step, int half) {
  const float product = static_cast<float>(symbol - half) * step;
  return std::min(std::max(product, -kLargest<float>), kLargest<float>);
}

// ---- arrays
// --------------------------------------------------------------------------------------

// Symbol half + k for k = value / step rounded to the nearest integer, ties to even, and limited to
// -half .. half. REQUIRES: the values are finite; symbols has as many; half <= 127.
template <typename T>
void uniform_symbols(std::span<const T> values, float step, int half,
                     std::uint8_t* symbols) noexcept;
// k is the integer below or above, the latter with the probability that makes it unbiased.
template <typename T>
void uniform_symbols_stochastic(std::span<const T> values, float step, int half,
                                const RandomStream& random, std::uint64_t first_index,
                                std::uint8_t* symbols) noexcept;

// What the symbols stand for, (symbol - half) * step limited to the range of float32, in place of
// `values` or added to `sums`: the numbers that a table of doubles rounded to float32 has, as the
// product of a float32 and 8 bits is exact in double. REQUIRES: no symbol is above 2 half.
void uniform_values(std::span<const std::uint8_t> symbols, float step, int half,
                    float* values) noexcept;
void add_uniform_values(std::span<const std::uint8_t> symbols, float step, int half,
                        float* sums) noexcept;

}  // namespace slimgrad::kernels

#endif  // SLIMGRAD_KERNELS_CODING_UNIFORM_H_
