// The two 16-bit float types as float32. Both conversions are exact: every float16 and every
// bfloat16 is a float32.
#ifndef SLIMGRAD_PROGRAM_HALF_H_
#define SLIMGRAD_PROGRAM_HALF_H_

#include <bit>
#include <cstdint>

namespace slimgrad::program {

// A bfloat16 is the upper half of a float32.
constexpr float bfloat16_to_float(std::uint16_t bits) {
  return std::bit_cast<float>(std::uint32_t{bits} << 16);
}

// IEEE binary16: 5 exponent bits with bias 15, 10 mantissa bits, subnormals, Inf and NaN.
constexpr float float16_to_float(std::uint16_t bits) {
  const std::uint32_t sign = (bits & 0x8000u) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1fu;
  const std::uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0) {
    // Zero or subnormal: mantissa * 2^-24, which float32 holds as a normal number.
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
  }
  // The bias grows from 15 to 127, and the exponent of Inf and NaN from 31 to 255.
  const std::uint32_t exponent32 = exponent == 0x1f ? 0xff : exponent + (127 - 15);
  return std::bit_cast<float>(sign | (exponent32 << 23) | (mantissa << 13));
}

}  // namespace slimgrad::program

#endif  // SLIMGRAD_PROGRAM_HALF_H_
