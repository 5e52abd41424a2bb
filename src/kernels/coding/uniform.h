// Uniform quantizing: values as integers, and integers of at most 8 bits back. T is float,
// BFloat16Bits or Float16Bits. noexcept, no allocation, any thread; the same on every CPU.
#ifndef SLIMGRAD_KERNELS_CODING_UNIFORM_H_
#define SLIMGRAD_KERNELS_CODING_UNIFORM_H_

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>

#include "base/rng.h"
#include "formats/open_levels.h"
#include "formats/value_types.h"

namespace slimgrad::kernels {

// ---- the rules, for one value; the specification ---------------------------------------------

// A float32 of 1.5 * 2^23 counts in ones: adding it rounds to an integer, ties to even, and leaves
// that in the low bits.
inline constexpr float kRoundToInteger = 0x1.8p23f;
constexpr std::uint32_t uniform_offset(int half) {
  return static_cast<std::uint32_t>(half) - std::bit_cast<std::uint32_t>(kRoundToInteger);
}
// There is an odd number of levels, 2 half + 1, with zero in the middle. Without an upper end the
// symbols, those of open_levels.h, have the same middle as with 8 bits.
constexpr int uniform_half(int bits) {
  return bits == kOpenBits ? kOpenCentre : (1 << (bits - 1)) - 1;
}
constexpr float uniform_quotient(float x, float step, int half) {
  const auto limit = static_cast<float>(half);
  return std::min(std::max(x / step, -limit), limit);
}
// Levels are -limit to limit, symbols begin at 0. REQUIRES: limit < 2^22.
constexpr std::int32_t uniform_level(float x, float step, int limit) {
  const float rounded = uniform_quotient(x, step, limit) + kRoundToInteger;
  return static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(rounded) + uniform_offset(0));
}
constexpr std::uint8_t uniform_symbol(float x, float step, int half) {
  return static_cast<std::uint8_t>(uniform_level(x, step, half) + half);
}
// `random` is a RandomStream, or a DrawnStream at `index`.
template <class Random>
constexpr std::int32_t uniform_level(float x, float step, int limit, const Random& random,
                                     std::uint64_t index) {
  const float quotient = uniform_quotient(x, step, limit);
  int below = static_cast<int>(quotient);  // towards zero
  if (static_cast<float>(below) > quotient) --below;
  const bool up = random.happens(index, quotient - static_cast<float>(below));
  return below + (up ? 1 : 0);
}
template <class Random>
constexpr std::uint8_t uniform_symbol(float x, float step, int half, const Random& random,
                                      std::uint64_t index) {
  return static_cast<std::uint8_t>(uniform_level(x, step, half, random, index) + half);
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

// The same for levels without an upper end (formats/open_levels.h): k limited to +-kLargestLevel.
template <typename T>
void uniform_levels(std::span<const T> values, float step, std::int32_t* levels) noexcept;
template <typename T>
void uniform_levels_stochastic(std::span<const T> values, float step, const RandomStream& random,
                               std::uint64_t first_index, std::int32_t* levels) noexcept;

// What the symbols stand for, (symbol - half) * step limited to the range of float32, in place of
// `values` or added to `sums`: the numbers that a table of doubles rounded to float32 has, as the
// product of a float32 and 8 bits is exact in double. REQUIRES: no symbol is above 2 half.
void uniform_values(std::span<const std::uint8_t> symbols, float step, int half,
                    float* values) noexcept;
void add_uniform_values(std::span<const std::uint8_t> symbols, float step, int half,
                        float* sums) noexcept;

}  // namespace slimgrad::kernels

#endif  // SLIMGRAD_KERNELS_CODING_UNIFORM_H_
