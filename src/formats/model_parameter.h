// How a payload's header stores the parameters of a model: positive numbers in 16 bits,
// (2048 + low 11 bits) 2^(high 5 bits - 27), that is 2^-16 to almost 2^16 with a relative error of
// at most 2^-12.
#ifndef SLIMGRAD_FORMATS_MODEL_PARAMETER_H_
#define SLIMGRAD_FORMATS_MODEL_PARAMETER_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace slimgrad {

// Rounds to nearest, saturates.
inline std::uint16_t encode_parameter(double value) {
  int exponent;
  const double fraction = std::frexp(std::clamp(value, 0x1p-16, 0x1.ffep15), &exponent);
  const auto mantissa = static_cast<int>(std::lround(fraction * 4096.0));  // 2048 .. 4096
  return static_cast<std::uint16_t>(std::min((exponent + 15) * 2048 + mantissa - 2048, 65535));
}

inline double decode_parameter(std::uint16_t code) {
  return std::ldexp(2048.0 + (code & 2047), (code >> 11) - 27);
}

// The nearest number that a header can hold.
inline double round_parameter(double value) { return decode_parameter(encode_parameter(value)); }

}  // namespace slimgrad

#endif  // SLIMGRAD_FORMATS_MODEL_PARAMETER_H_
