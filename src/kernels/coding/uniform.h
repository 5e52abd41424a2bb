// Uniform quantizing: values as integers of at most 8 bits, and back. T is float, BFloat16Bits or
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

}  // namespace slimgrad::kernels

#endif  // SLIMGRAD_KERNELS_CODING_UNIFORM_H_
