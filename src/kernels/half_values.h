// The 16-bit float types to and from float32, one value at a time, with integers: what the vector
// code of half_values-inl.h is held against. Rounding is to nearest, ties to even, as torch rounds;
// every NaN becomes the canonical one.
#ifndef SLIMGRAD_KERNELS_HALF_VALUES_H_
#define SLIMGRAD_KERNELS_HALF_VALUES_H_

#include <bit>
#include <cstdint>

#include <slimgrad/half.h>

namespace slimgrad::kernels {

constexpr float to_float(float x) { return x; }

constexpr float to_float(BFloat16Bits x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
}

constexpr float to_float(Float16Bits x) {
  const std::uint32_t magnitude = x.bits & 0x7fffu;
  const std::uint32_t sign = static_cast<std::uint32_t>(x.bits & 0x8000u) << 16;
  // A subnormal is a multiple of 2^-24; as a float32 it is normal.
  const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
  // The exponent's bias grows from 15 to 127; Inf and NaN go up twice, from 31 to 255.
  const std::uint32_t rebias = 112u << 23;
  const std::uint32_t normal = (magnitude << 13) + (magnitude < 0x7c00u ? rebias : 2 * rebias);
  const std::uint32_t bits = magnitude < 0x0400u ? std::bit_cast<std::uint32_t>(subnormal) : normal;
  return std::bit_cast<float>(bits | sign);
}

template <typename T>
constexpr T from_float(float x);

template <>
constexpr float from_float<float>(float x) {
  return x;
}

// Adding just under half of the last kept bit, or exactly half if that bit is odd, carries where
// rounding is up. A carry out of the mantissa is the next exponent, as it should be.
template <>
constexpr BFloat16Bits from_float<BFloat16Bits>(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {0x7fc0};
  return {static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
}

template <>
constexpr Float16Bits from_float<Float16Bits>(float x) {
  const std::uint32_t all = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = all >> 16 & 0x8000u;
  const std::uint32_t bits = all & 0x7fffffffu;
  std::uint32_t half = 0;
  if (bits > 0x7f800000u) {
    return {0x7e00};
  } else if (bits >= 143u << 23) {  // From 2^16 up, to Inf. Just below, the carry gives Inf.
    half = 0x7c00u;
  } else if (bits >= 113u << 23) {
    half = (bits - (112u << 23) + 0xfffu + (bits >> 13 & 1u)) >> 13;
  } else {
    // Below 2^-14 the result is a multiple of 2^-24, which is the last bit of floats in [0.5, 1):
    // the addition rounds.
    half = std::bit_cast<std::uint32_t>(std::bit_cast<float>(bits) + 0.5f) - (126u << 23);
  }
  return {static_cast<std::uint16_t>(half | sign)};
}

}  // namespace slimgrad::kernels

#endif  // SLIMGRAD_KERNELS_HALF_VALUES_H_
