#include "kernels/measure/power_sums.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "for_each_target.h"

namespace slimgrad::kernels {
namespace {

template <typename T>
bool countable(T x) {
  return x != 0 && std::isfinite(x);
}

template <typename T>
std::vector<T> values_with_exceptions(std::size_t n) {
  std::mt19937_64 generator(n + 1);
  std::lognormal_distribution<double> magnitude(-3, 2);
  std::vector<T> values(n);
  for (std::size_t i = 0; i < n; ++i) {
    values[i] = static_cast<T>((i % 2 == 0 ? 1 : -1) * magnitude(generator));
    if (i % 7 == 3) values[i] = i % 14 == 3 ? T{0} : -T{0};
    if (i % 11 == 5) values[i] = std::numeric_limits<T>::quiet_NaN();
    if (i % 13 == 6) values[i] = (i % 2 == 0 ? 1 : -1) * std::numeric_limits<T>::infinity();
    if (i % 17 == 8)
      values[i] = std::is_same_v<T, float> ? std::numeric_limits<T>::denorm_min() : T(1e-300);
  }
  return values;
}

template <typename T>
void expect_sums(const std::vector<T>& values) {
  const std::span<const T> span(values);
  NonzeroRange expected;
  for (const T x : values) {
    if (!countable(x)) continue;
    const double m = std::abs(x);
    expected.min = expected.count == 0 ? m : std::min(expected.min, m);
    expected.max = std::max(expected.max, m);
    ++expected.count;
  }
  const NonzeroRange range = nonzero_range(span);
  EXPECT_EQ(range.count, expected.count);
  EXPECT_EQ(range.min, expected.min);
  EXPECT_EQ(range.max, expected.max);
  if (range.count == 0 || range.max < std::numeric_limits<double>::min()) return;

  long double moments[2] = {};
  for (const T x : values) {
    if (!countable(x)) continue;
    const long double y = std::abs(static_cast<long double>(x)) / range.max;
    moments[0] += y;
    moments[1] += y * y;
  }
  const auto actual_moments = magnitude_moments(span, range.max);
  for (int k = 0; k < 2; ++k)
    EXPECT_NEAR(actual_moments[k], moments[k], 1e-14 * static_cast<double>(moments[k]));

  for (const double shape : {0.0, 0.05, 0.7, 2.0, 20.0, 128.0}) {
    long double sums[8] = {};
    for (const T x : values) {
      if (!countable(x)) continue;
      const long double log = std::log(std::abs(static_cast<long double>(x)) / range.max);
      long double term = std::exp(shape * log);
      for (long double& sum : sums) {
        sum += term;
        term *= log;
      }
    }
    const auto actual = power_sums(span, range.max, shape);
    // The largest y may be an ulp off one, its logarithm an ulp of one off zero.
    const double absolute = 4e-16 * static_cast<double>(range.count);
    for (int k = 0; k < 8; ++k)
      EXPECT_NEAR(actual[k], sums[k], 2e-14 * std::abs(static_cast<double>(sums[k])) + absolute)
          << "shape " << shape << " k " << k;
  }
}

// Every instruction set that this CPU has, and lengths around vectors and blocks.
TEST(PowerSums, MatchAPlainLoopOnEveryTarget) {
  for_each_target([](const char* target) {
    SCOPED_TRACE(target);
    for (const std::size_t n : {0, 1, 2, 3, 4, 5, 7, 8, 9, 31, 4095, 4096, 4097, 9001}) {
      SCOPED_TRACE(n);
      expect_sums(values_with_exceptions<float>(n));
      expect_sums(values_with_exceptions<double>(n));
    }
  });
}

TEST(PowerSums, EveryTargetGivesTheSameBits) {
  for (const std::size_t n : {1, 5, 8, 100, 4095, 4097, 20011}) {
    const auto floats = values_with_exceptions<float>(n);
    const auto doubles = values_with_exceptions<double>(n);
    const auto sums_of = [&] {
      std::vector<double> all;
      const auto add = [&](const auto& values) {
        const auto span =
            std::span<const typename std::decay_t<decltype(values)>::value_type>(values);
        const double max = nonzero_range(span).max;
        if (max == 0) return;
        for (const double sum : magnitude_moments(span, max)) all.push_back(sum);
        for (const double shape : {0.0, 0.3, 2.0, 128.0})
          for (const double sum : power_sums(span, max, shape)) all.push_back(sum);
      };
      add(floats);
      add(doubles);
      return all;
    };
    const std::vector<double> expected = sums_of();
    for_each_target([&](const char* target) { EXPECT_EQ(sums_of(), expected) << target << n; });
  }
}

TEST(PowerSums, NothingToCount) {
  const std::vector<float> values = {0.0f, -0.0f, std::nanf(""), HUGE_VALF, -HUGE_VALF};
  const NonzeroRange range = nonzero_range(std::span<const float>(values));
  EXPECT_EQ(range.count, 0u);
  EXPECT_EQ(range.min, 0);
  EXPECT_EQ(range.max, 0);
}

}  // namespace
}  // namespace slimgrad::kernels
