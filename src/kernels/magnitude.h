// |x| of any input type as the bits of a float32 without its sign. The order of these integers is
// the order of the magnitudes, 0 is zero, and from kInfinityBits up they are Inf and NaN.
//
// Only integers touch a subnormal here: a thread that flushes subnormals to zero (FTZ, DAZ; torch
// offers it as set_flush_denormal) sees the same numbers as any other.
#ifndef SLIMGRAD_KERNELS_MAGNITUDE_H_
#define SLIMGRAD_KERNELS_MAGNITUDE_H_

#include <bit>
#include <cstdint>

#include <slimgrad/half.h>

namespace slimgrad::kernels {

inline constexpr std::uint32_t kSignMask = 0x80000000u;
inline constexpr std::uint32_t kInfinityBits = 0x7f800000u;
inline constexpr std::uint32_t kSmallestNormalBits = 0x00800000u;

constexpr std::uint32_t magnitude_bits(float x) {
  return std::bit_cast<std::uint32_t>(x) & ~kSignMask;
}

constexpr std::uint32_t magnitude_bits(BFloat16Bits x) { return (x.bits & 0x7fffu) << 16; }

constexpr std::uint32_t magnitude_bits(Float16Bits x) {
  const std::uint32_t magnitude = x.bits & 0x7fffu;
  // A subnormal is a multiple of 2^-24; as a float32 it is normal.
  const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
  // The exponent's bias grows from 15 to 127; Inf and NaN go up twice, from 31 to 255.
  const std::uint32_t rebias = 112u << 23;
  const std::uint32_t normal = (magnitude << 13) + (magnitude < 0x7c00u ? rebias : 2 * rebias);
  return magnitude < 0x0400u ? std::bit_cast<std::uint32_t>(subnormal) : normal;
}

// REQUIRES: bits < kInfinityBits.
constexpr double magnitude_value(std::uint32_t bits) {
  if (bits < kSmallestNormalBits) return static_cast<double>(bits) * 0x1p-149;
  return static_cast<double>(std::bit_cast<float>(bits));
}

// The scale that gives the largest magnitude of an array the code of `largest_code`.
constexpr float scale_of_maximum(std::uint32_t max_bits, double largest_code) {
  if (max_bits == 0) return 1.0f;
  const auto scale = static_cast<float>(magnitude_value(max_bits) / largest_code);
  return scale < 0x1p-126f ? 0x1p-126f : scale;
}

}  // namespace slimgrad::kernels

#endif  // SLIMGRAD_KERNELS_MAGNITUDE_H_
