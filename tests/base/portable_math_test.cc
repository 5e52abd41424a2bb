#include "base/portable_math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace slimgrad {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(PortableMath, AgreesWithTheLibrary) {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> exponent(-744.0, 709.0);
  for (int i = 0; i < 100000; ++i) {
    const double x = std::exp(exponent(random));
    EXPECT_NEAR(portable_log(x), std::log(x), 4e-16 * std::abs(std::log(x)) + 4e-16);
    EXPECT_NEAR(portable_log2(x), std::log2(x), 4e-16 * std::abs(std::log2(x)) + 4e-16);
    const double y = exponent(random);
    EXPECT_NEAR(portable_exp(y), std::exp(y), 6e-16 * std::exp(y) + 0x1p-1074);
  }
}

// Near one a logarithm is small, and must keep its digits.
TEST(PortableMath, LogarithmsNearOne) {
  for (int i = 1; i < 50; ++i) {
    const double x = 1 + std::ldexp(1.0, -i);
    EXPECT_NEAR(portable_log(x) / std::log(x), 1, 4e-16) << i;
    EXPECT_NEAR(portable_log(1 / x) / std::log(1 / x), 1, 4e-16) << i;
  }
  EXPECT_EQ(portable_log(1.0), 0.0);
  EXPECT_EQ(portable_exp(0.0), 1.0);
  for (int k = -1074; k < 1024; ++k) EXPECT_EQ(portable_log2(std::ldexp(1.0, k)), k);
}

TEST(PortableMath, Ends) {
  EXPECT_EQ(portable_log(0.0), -kInfinity);
  EXPECT_EQ(portable_log2(0.0), -kInfinity);
  EXPECT_EQ(portable_log(kInfinity), kInfinity);
  EXPECT_TRUE(std::isnan(portable_log(-1.0)));
  EXPECT_TRUE(std::isnan(portable_log(std::nan(""))));
  EXPECT_EQ(portable_exp(-kInfinity), 0);
  EXPECT_EQ(portable_exp(kInfinity), kInfinity);
  EXPECT_EQ(portable_exp(709.9), kInfinity);
  EXPECT_TRUE(std::isnan(portable_exp(std::nan(""))));
}

// What a compiler computes is what the machine computes: nothing here asks a library, and nothing
// is contracted.
TEST(PortableMath, CompilerAndMachineAgree) {
  constexpr double kLog = portable_log(0.3), kExp = portable_exp(-12.7);
  volatile double x = 0.3, y = -12.7;
  EXPECT_EQ(portable_log(x), kLog);
  EXPECT_EQ(portable_exp(y), kExp);
}

}  // namespace
}  // namespace slimgrad
