// float32 bits of the array types, and back: the nearest number, ties to even. Integers and normal
// floats only, so that every target and every flushing mode gives the same bits.
#ifndef SLIMGRAD_KERNELS_HALF_FLOAT_H_
#define SLIMGRAD_KERNELS_HALF_FLOAT_H_

#include <bit>
#include <cstdint>

#include <slimgrad/half.h>

#include "kernels/magnitude.h"

namespace slimgrad::kernels {

constexpr std::uint32_t float_bits(float x) { return std::bit_cast<std::uint32_t>(x); }
constexpr std::uint32_t float_bits(BFloat16Bits x) { return std::uint32_t{x.bits} << 16; }
constexpr std::uint32_t float_bits(Float16Bits x) {
  return (std::uint32_t{x.bits} & 0x8000u) << 16 | magnitude_bits(x);
}

// REQUIRES, for finite bits: the magnitude rounds to a finite number of the type. Inf and NaN are
// right if they came from the type.
template <typename T>
constexpr T from_float_bits(std::uint32_t bits);

template <>
constexpr float from_float_bits(std::uint32_t bits) {
  return std::bit_cast<float>(bits);
}

template <>
constexpr BFloat16Bits from_float_bits(std::uint32_t bits) {
  return {static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16)};
}

template <>
constexpr Float16Bits from_float_bits(std::uint32_t bits) {
  const std::uint32_t magnitude = bits & ~kSignMask;
  std::uint32_t half;
  if (magnitude >= kInfinityBits) {
    half = (magnitude - (224u << 23)) >> 13;
  } else if (magnitude < 113u << 23) {
    // Below 2^-14 float16 counts in steps of 2^-24, which are the steps of a float32 from 0.5 on:
    // the addition rounds.
    half = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - (126u << 23);
  } else {
    half = (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1)) >> 13;
  }
  return {static_cast<std::uint16_t>((bits & kSignMask) >> 16 | half)};
}

}  // namespace slimgrad::kernels

#endif  // SLIMGRAD_KERNELS_HALF_FLOAT_H_
