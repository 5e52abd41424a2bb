// Uniform quantizing: values as integers, and integers of at most 8 bits back. T is float, BFloat16Bits or
// Float16Bits. noexcept, no allocation, any thread; the same on every CPU.
#ifndef SLIMGRAD_KERNELS_CODING_UNIFORM_H_
#define SLIMGRAD_KERNELS_CODING_UNIFORM_H_

#include <cstdint>
#include <span>

#include "base/rng.h"

namespace slimgrad::kernels {

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
