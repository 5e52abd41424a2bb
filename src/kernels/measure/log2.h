// log2 of float32 magnitudes, the same bits on every machine: multiplications and additions of
// float32, each rounded once, in the order written.
//
// The bits of a positive float, read as an integer, are its logarithm in units of 2^-23 up to a
// bias and a bend: log2(1 + f) is taken for f, the fraction of the mantissa. The bend,
// log2(1 + f) - f, is approximated by f (1 - f) R(f - 1/2), which is right at both ends. R is the
// polynomial of degree 5 with the least maximal error, 3.3e-7 (linear programming on 3001 Chebyshev
// points); with coefficients and steps rounded to float32 it is 3.5e-7.
#ifndef SLIMGRAD_KERNELS_MEASURE_LOG2_H_
#define SLIMGRAD_KERNELS_MEASURE_LOG2_H_

#include <bit>
#include <cstdint>

#include "kernels/magnitude.h"

namespace slimgrad::kernels {

inline constexpr double kLog2Unit = 0x1p-23;
inline constexpr double kLog2Error = 3.5e-7;
// Modulo 2^32, as the vectors subtract: that of subnormals is above the largest int32.
inline constexpr std::int32_t kLog2Bias = 127 << 23;
inline constexpr auto kLog2BiasOfSubnormals = static_cast<std::int32_t>((127u + 149u) << 23);

inline constexpr float kLog2Bend[] = {0x1.5c01f8p+21f,  -0x1.38f940p+20f, 0x1.3acf92p+19f,
                                      -0x1.507c2ep+18f, 0x1.9e90dap+17f,  -0x1.f25f42p+16f};

// In units of 2^-23, as a function of the mantissa alone; not negative.
constexpr float log2_bend(std::uint32_t bits) {
  const auto& c = kLog2Bend;
  const float u = std::bit_cast<float>((bits & 0x007fffffu) | (127u << 23)) - 1.5f;
  const float v = u * u;
  const float even = (c[4] * v + c[2]) * v + c[0], odd = (c[5] * v + c[3]) * v + c[1];
  return (odd * u + even) * (0.25f - v);
}

// A magnitude as the bits of a normal float, and its bias: log2 = (whole() + bend) 2^-23.
// A subnormal is an integer times 2^-149, and that integer is a normal float.
struct Log2Bits {
  std::int32_t bits, bias;

  // bits - bias, which fits an int32 although the bias may not.
  constexpr std::int32_t whole() const {
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(bits) -
                                     static_cast<std::uint32_t>(bias));
  }
};

// REQUIRES: 0 < bits < kInfinityBits.
constexpr Log2Bits log2_bits(std::uint32_t bits) {
  if (bits >= kSmallestNormalBits) return {static_cast<std::int32_t>(bits), kLog2Bias};
  return {std::bit_cast<std::int32_t>(static_cast<float>(bits)), kLog2BiasOfSubnormals};
}

}  // namespace slimgrad::kernels

#endif  // SLIMGRAD_KERNELS_MEASURE_LOG2_H_
