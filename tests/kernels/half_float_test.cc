#include "kernels/half_float.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>

namespace slimgrad::kernels {
namespace {

// value = (-1)^s 2^(e - 15) (1 + m / 1024), by the definition of the format and ldexp.
TEST(HalfFloat, EveryFloat16) {
  for (int bits = 0; bits < 65536; ++bits) {
    const int exponent = bits >> 10 & 31;
    const int mantissa = bits & 1023;
    const float got = to_float(Float16Bits{static_cast<std::uint16_t>(bits)});
    ASSERT_EQ(std::signbit(got), bits >= 32768) << bits;
    if (exponent == 31) {
      ASSERT_EQ(std::isnan(got), mantissa != 0) << bits;
      ASSERT_FALSE(std::isfinite(got)) << bits;
    } else {
      const double want = exponent == 0 ? std::ldexp(mantissa, -24)
                                        : std::ldexp(1024 + mantissa, exponent - 15 - 10);
      ASSERT_EQ(std::fabs(got), want) << bits;
    }
  }
}

// A bfloat16 is the upper half of a float32.
TEST(HalfFloat, EveryBFloat16) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits)
    ASSERT_EQ(
        std::bit_cast<std::uint32_t>(to_float(BFloat16Bits{static_cast<std::uint16_t>(bits)})),
        bits << 16);
}

}  // namespace
}  // namespace slimgrad::kernels
