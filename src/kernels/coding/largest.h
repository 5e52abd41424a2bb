// The places of the largest magnitudes of a few thousand values. T is float, BFloat16Bits or
// Float16Bits. noexcept, no allocation, any thread; the same on every CPU.
#ifndef SLIMGRAD_KERNELS_CODING_LARGEST_H_
#define SLIMGRAD_KERNELS_CODING_LARGEST_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "formats/topk.h"

namespace slimgrad::kernels {

struct LargestScratch {
  static constexpr std::size_t kSlack = 64;
  alignas(64) std::array<std::uint32_t, kMaxTopkOf> maxima;
  std::array<std::uint64_t, kMaxTopkOf + kSlack> keys, sorted;
};

// Writes the places, ascending, of the `count` values of the largest magnitude; of equal ones those
// that come first. Zeros are not among them, so that there may be fewer. Returns how many.
//
// Vectors find a magnitude that `count` values have for sure, the count-th largest among the maxima
// of twice as many columns, then all values that reach it, which are some 1.4 times `count` if they
// lie anywhere; only these are compared with one another.
// REQUIRES: the values are finite, at most kMaxTopkOf; count >= 1; `places` has room for `count`.
template <typename T>
std::size_t largest_places(std::span<const T> values, std::size_t count, LargestScratch& scratch,
                           std::uint16_t* places) noexcept;

}  // namespace slimgrad::kernels

#endif  // SLIMGRAD_KERNELS_CODING_LARGEST_H_
