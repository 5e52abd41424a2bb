// float32 of the array types, as bits or as numbers, and back: the nearest number, ties to even, as
// torch rounds. Integers and normal floats only, so that every target and every flushing mode gives
// the same bits. half_float-inl.h has the same on vectors.
#ifndef SLIMGRAD_KERNELS_HALF_FLOAT_H_
#define SLIMGRAD_KERNELS_HALF_FLOAT_H_

#include <bit>
#include <cstdint>

#include <slimgrad/half.h>

#include "formats/value_types.h"
#include "kernels/magnitude.h"

namespace slimgrad::kernels {

constexpr std::uint32_t float_bits(float x) { return std::bit_cast<std::uint32_t>(x); }
constexpr std::uint32_t float_bits(BFloat16Bits x) { return std::uint32_t{x.bits} << 16; }
constexpr std::uint32_t float_bits(Float16Bits x) {
  return (std::uint32_t{x.bits} & 0x8000u) << 16 | magnitude_bits(x);
}

template <typename T>
constexpr float to_float(T x) {
  return std::bit_cast<float>(float_bits(x));
}

// Bits that are known to fit, as after rounding to a grid: cheap, and NaN keeps its payload.
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

// Any number: what is too large becomes Inf, and every NaN of a 16-bit type is the canonical one.
template <typename T>
constexpr T from_float(float x) {
  return from_float_bits<T>(std::bit_cast<std::uint32_t>(x));
}

template <>
constexpr BFloat16Bits from_float(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  if ((bits & ~kSignMask) > kInfinityBits) return {0x7fc0};
  return from_float_bits<BFloat16Bits>(bits);
}

template <>
constexpr Float16Bits from_float(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t magnitude = bits & ~kSignMask;
  if (magnitude > kInfinityBits) return {0x7e00};
  // From 2^16 up. Just below, the carry of rounding gives Inf by itself.
  if (magnitude >= 143u << 23)
    return {static_cast<std::uint16_t>((bits & kSignMask) >> 16 | 0x7c00u)};
  return from_float_bits<Float16Bits>(bits);
}

// The same for 16-bit types but for what is too large, which becomes the largest number.
template <typename T>
constexpr T from_float_in_range(float x) {
  if constexpr (sizeof(T) == 2)
    x = x > kLargest<T> ? kLargest<T> : x < -kLargest<T> ? -kLargest<T> : x;
  return from_float<T>(x);
}

}  // namespace slimgrad::kernels

#endif  // SLIMGRAD_KERNELS_HALF_FLOAT_H_
