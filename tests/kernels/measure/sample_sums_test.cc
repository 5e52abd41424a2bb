// Every kernel set against the specification, in any order, and the statistics against plain
// arithmetic.
#include "kernels/measure/sample_sums.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "for_each_target.h"

namespace slimgrad::kernels {
namespace {

// Any bits: subnormals, zeros, Inf, NaN and the extremes of the range among them.
std::vector<float> any_values(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::vector<float> values(count);
  for (float& x : values) {
    auto bits = static_cast<std::uint32_t>(engine());
    const std::uint64_t kind = engine() % 8;
    if (kind == 0) bits &= 0x807fffffu;
    if (kind <= 2 && kind > 0) bits &= 0x80000000u;
    if (kind == 3) bits |= 0x7f800000u;
    x = std::bit_cast<float>(bits);
  }
  return values;
}

SampleSums specification(std::span<const float> values) {
  SampleSums sums;
  for (const float x : values) sums.add(magnitude_bits(x));
  return sums;
}

TEST(SampleSums, EveryTargetAndAnyOrderGiveTheSameIntegers) {
  for (const std::size_t n : {0, 1, 3, 15, 16, 17, 511, 65535, 65536, 65537, 140001}) {
    std::vector<float> values = any_values(n, n);
    const SampleSums expected = specification(values);
    for_each_target([&](const char* target) {
      SCOPED_TRACE(target);
      EXPECT_TRUE(sum_sample(values) == expected) << n;
    });
    std::reverse(values.begin(), values.end());
    EXPECT_TRUE(sum_sample(values) == expected) << n;
  }
}

// The sums of a full sample of the largest and of the smallest float.
TEST(SampleSums, NothingOverflows) {
  for (const float x :
       {std::numeric_limits<float>::max(), std::numeric_limits<float>::denorm_min()}) {
    const std::vector<float> values(1 << 18, x);
    const SampleSums sums = sum_sample(values);
    EXPECT_TRUE(sums == specification(values));
    const TensorStats stats = stats_of(sums);
    EXPECT_EQ(stats.mean_abs, x);
    EXPECT_EQ(stats.mean_square, static_cast<double>(x) * x);
    EXPECT_NEAR(stats.log_mean, std::log(static_cast<double>(x)), 3e-7);
    EXPECT_EQ(stats.log_std, 0);  // however large the logarithms are
  }
}

TEST(SampleSums, LogarithmIsRoundedToNearest) {
  for (const std::uint32_t exponent : {0u, 1u, 126u, 127u, 128u, 254u}) {
    for (std::uint32_t mantissa = 1; mantissa < (1u << 23); mantissa += 1021) {
      const std::uint32_t bits = (exponent << 23) | mantissa;
      const double exact = std::log2(magnitude_value(bits));
      ASSERT_NEAR(log2_in_fixed_point(bits) * kLog2Unit, exact, kLog2Error + kLog2Unit / 2) << bits;
    }
  }
}

TEST(SampleSums, StatisticsAreThoseOfTheDefinitions) {
  std::mt19937_64 engine(7);
  std::normal_distribution<double> normal(-4, 1.3);
  std::vector<float> values(30000);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = i % 5 == 0 ? 0.0f : static_cast<float>(std::exp(normal(engine)));
  values[1] = std::numeric_limits<float>::infinity();
  values[2] = 1e-41f;
  double abs = 0, square = 0, log = 0, deviation = 0, max = 0;
  const double num_finite = 29999, num_nonzero = 23999;
  for (const float x : values) {
    if (!std::isfinite(x) || x == 0) continue;
    abs += x;
    square += static_cast<double>(x) * x;
    log += std::log(static_cast<double>(x)) / num_nonzero;
    max = std::max<double>(max, x);
  }
  for (const float x : values)
    if (std::isfinite(x) && x != 0)
      deviation += std::pow(std::log(static_cast<double>(x)) - log, 2);
  const TensorStats stats = stats_of(sum_sample(values));
  EXPECT_EQ(stats.count, 30000u);
  EXPECT_EQ(stats.zeros, 6000u);
  EXPECT_EQ(stats.nonfinite, 1u);
  EXPECT_DOUBLE_EQ(stats.zero_fraction, 6000 / num_finite);
  EXPECT_EQ(stats.max_abs, max);
  EXPECT_NEAR(stats.mean_abs, abs / num_finite, 1e-12 * stats.mean_abs);
  EXPECT_NEAR(stats.mean_square, square / num_finite, 1e-12 * stats.mean_square);
  EXPECT_NEAR(stats.log_mean, log, 3e-7);
  EXPECT_NEAR(stats.log_std, std::sqrt(deviation / num_nonzero), 3e-7);
  EXPECT_EQ(stats.histogram.total(), 23999u);
}

}  // namespace
}  // namespace slimgrad::kernels
