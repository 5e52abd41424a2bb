#include "kernels/coding/uniform.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "arrays/apply/value_table.h"
#include "arrays/coding/symbols.h"
#include "kernels/half_float.h"
#include "kernels/measure/magnitude_range.h"

namespace slimgrad::kernels {
namespace {

template <typename T>
std::vector<T> normal_values(std::size_t n) {
  std::mt19937_64 random(n);
  std::normal_distribution<float> normal;
  std::vector<T> values(n);
  for (T& value : values) value = from_float_bits<T>(std::bit_cast<std::uint32_t>(normal(random)));
  return values;
}

template <typename T>
double number(T value) {
  return std::bit_cast<float>(float_bits(value));
}

template <typename T>
void expect_nearest_on_every_target() {
  for (const std::size_t n : {0u, 1u, 31u, 1000u})
    for (const int half : {1, 7, 127}) {
      const std::vector<T> values = normal_values<T>(n);
      const float step = 2.5f / static_cast<float>(half);  // some values saturate
      std::vector<std::uint8_t> expected(n);
      for (std::size_t i = 0; i < n; ++i) {
        // The quotient is a float32, as the specification has it.
        const float quotient = static_cast<float>(number(values[i])) / step;
        const double k = std::clamp<double>(std::nearbyint(quotient), -half, half);
        expected[i] = static_cast<std::uint8_t>(half + static_cast<int>(k));
      }
      for_each_target([&](const char* target) {
        std::vector<std::uint8_t> symbols(n);
        uniform_symbols(std::span<const T>(values), step, half, symbols.data());
        EXPECT_EQ(symbols, expected) << target;
      });
    }
}

TEST(UniformSymbols, NearestOnEveryTarget) {
  expect_nearest_on_every_target<float>();
  expect_nearest_on_every_target<BFloat16Bits>();
  expect_nearest_on_every_target<Float16Bits>();
}

template <typename T>
void expect_draws_on_every_target() {
  const RandomStream random(11, Stream::kRound);
  for (const std::size_t n : {0u, 1u, 63u, 64u, 1000u, 70000u})
    for (const std::uint64_t first : {0u, 64u, 3u})
      for (const int half : {1, 7, 127}) {
        const std::vector<T> values = normal_values<T>(n);
        const float step = 2.5f / static_cast<float>(half);
        std::vector<std::uint8_t> expected(n);
        for (std::size_t i = 0; i < n; ++i) {
          const auto limit = static_cast<float>(half);
          const float quotient =
              std::clamp(static_cast<float>(number(values[i])) / step, -limit, limit);
          const bool up = random.happens(first + i, quotient - std::floor(quotient));
          expected[i] = static_cast<std::uint8_t>(half + static_cast<int>(std::floor(quotient)) +
                                                  (up ? 1 : 0));
        }
        for_each_target([&](const char* target) {
          std::vector<std::uint8_t> symbols(n);
          uniform_symbols_stochastic(std::span<const T>(values), step, half, random, first,
                                     symbols.data());
          EXPECT_EQ(symbols, expected) << target << ' ' << n << ' ' << first;
        });
      }
}

// 70,000 draws meet the case that 16 bits do not decide, once in 65,536, about once.
TEST(UniformSymbols, StochasticOnEveryTarget) {
  expect_draws_on_every_target<float>();
  expect_draws_on_every_target<BFloat16Bits>();
  expect_draws_on_every_target<Float16Bits>();
}

TEST(UniformValues, AreTheTablesOfDoublesOnEveryTarget) {
  for (const int half : {1, 7, 127})
    for (const float step : {0.1f, 1.17549435e-38f, 3.0e38f, 1.0f / 3.0f}) {
      std::vector<std::uint8_t> symbols(1001);
      for (std::size_t i = 0; i < symbols.size(); ++i)
        symbols[i] = static_cast<std::uint8_t>(i % static_cast<std::size_t>(2 * half + 1));
      const auto table = uniform_value_table<float>(half, step);
      for_each_target([&](const char* target) {
        std::vector<float> values(symbols.size()), sums(symbols.size(), 0.75f);
        uniform_values(symbols, step, half, values.data());
        add_uniform_values(symbols, step, half, sums.data());
        for (std::size_t i = 0; i < symbols.size(); ++i) {
          const float value = table[symbols[i]];
          EXPECT_EQ(std::bit_cast<std::uint32_t>(values[i]), std::bit_cast<std::uint32_t>(value))
              << target;
          EXPECT_EQ(sums[i], 0.75f + value) << target;
        }
      });
    }
}

template <typename T>
void expect_range_on_every_target(double smallest) {
  std::vector<T> values = normal_values<T>(70001);
  const auto put = [&](std::size_t i, float x) {
    values[i] = from_float_bits<T>(std::bit_cast<std::uint32_t>(x));
  };
  double largest = 0;
  for (const T value : values) largest = std::max(largest, std::abs(number(value)));
  put(5, std::numeric_limits<float>::infinity());
  put(70000, std::numeric_limits<float>::quiet_NaN());
  put(6, -std::numeric_limits<float>::infinity());
  put(7, 0.0f);
  put(8, -0.0f);
  put(9, static_cast<float>(-smallest));
  for_each_target([&](const char* target) {
    const MagnitudeRange range = magnitude_range(std::span<const T>(values));
    EXPECT_EQ(std::bit_cast<float>(range.largest), largest) << target;
    EXPECT_EQ(std::bit_cast<float>(range.smallest), smallest) << target;
    EXPECT_EQ(range.nonfinite, 3u) << target;
    const std::vector<T> zeros(100);
    const MagnitudeRange none = magnitude_range(std::span<const T>(zeros));
    EXPECT_EQ(none.largest, 0u) << target;
    EXPECT_EQ(none.smallest, 0xffffffffu) << target;
  });
}

TEST(MagnitudeRange, EveryTarget) {
  expect_range_on_every_target<float>(0x1p-149);
  expect_range_on_every_target<BFloat16Bits>(0x1p-133);
  expect_range_on_every_target<Float16Bits>(0x1p-24);
}

}  // namespace
}  // namespace slimgrad::kernels
