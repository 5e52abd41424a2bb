// Values as 8-bit symbols and back, for payloads: uniform quantizing, and the classes of a pruned
// tensor. T is float, BFloat16Bits or Float16Bits. Plain loops that compilers vectorize.
// noexcept, no allocation, any thread; the same on every CPU.
#ifndef SLIMGRAD_KERNELS_VALUE_SYMBOLS_H_
#define SLIMGRAD_KERNELS_VALUE_SYMBOLS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/rng.h"

namespace slimgrad::kernels {

// As bits of float32 magnitudes (magnitude.h).
struct MagnitudeRange {
  std::uint32_t largest = 0;             // of the finite ones
  std::uint32_t smallest = 0xffffffffu;  // but zero; NaN and Inf count
  std::uint64_t nonfinite = 0;
};

template <typename T>
MagnitudeRange magnitude_range(std::span<const T> values) noexcept;

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

// Classes: +0, +threshold, -threshold, and anything else, which is a survivor and is copied to
// `survivors`. Returns how many there are. REQUIRES: classes and survivors have room for as many
// as there are values.
inline constexpr std::uint8_t kZeroClass = 0, kPositiveClass = 1, kNegativeClass = 2,
                              kSurvivorClass = 3;
template <typename T>
std::size_t split_classes(std::span<const T> values, T threshold, std::uint8_t* classes,
                          T* survivors) noexcept;
// REQUIRES: no class is above kSurvivorClass; survivors has one more value than there are
// survivors.
template <typename T>
void merge_classes(std::span<const std::uint8_t> classes, T threshold, const T* survivors,
                   T* values) noexcept;

std::uint8_t largest_symbol(std::span<const std::uint8_t> symbols) noexcept;
std::size_t count_symbol(std::span<const std::uint8_t> symbols, std::uint8_t symbol) noexcept;

template <typename T>
void look_up(std::span<const std::uint8_t> symbols, const std::array<T, 256>& table,
             T* values) noexcept;

}  // namespace slimgrad::kernels

#endif  // SLIMGRAD_KERNELS_VALUE_SYMBOLS_H_
