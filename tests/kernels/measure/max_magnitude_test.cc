#include "kernels/measure/magnitude_range.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/dispatch.h"
#include "kernels/half_float.h"

namespace slimgrad::kernels {
namespace {

// By comparing as floats, one by one.
template <typename T>
float expected(const std::vector<T>& values) {
  float max = 0;
  for (const T x : values)
    if (const float value = std::bit_cast<float>(float_bits(x)); std::isfinite(value))
      max = std::max(max, std::fabs(value));
  return max;
}

// Random bits: every exponent, Inf and NaN among them. Every length up to a few vectors, and the
// maximum in every place.
template <typename T>
void compare(T (*make)(std::uint32_t), T largest) {
  for (const std::string& set : kernel_sets()) {
    select_kernel_set(set);
    std::mt19937 engine(1);
    for (std::size_t n = 0; n <= 70; ++n) {
      std::vector<T> values(n);
      for (T& x : values) x = make(engine());
      EXPECT_EQ(max_magnitude(std::span<const T>(values)), expected(values)) << set << " " << n;
      for (std::size_t i = 0; i < n; ++i) {
        std::vector<T> with_largest = values;
        with_largest[i] = largest;
        EXPECT_EQ(max_magnitude(std::span<const T>(with_largest)),
                  std::bit_cast<float>(float_bits(largest)))
            << set << " " << n << " " << i;
      }
    }
  }
  select_kernel_set("best");
}

TEST(MaxMagnitude, IsTheLargestFiniteOne) {
  compare<float>([](std::uint32_t bits) { return std::bit_cast<float>(bits); },
                 std::numeric_limits<float>::max());
  compare<BFloat16Bits>(
      [](std::uint32_t bits) { return BFloat16Bits{static_cast<std::uint16_t>(bits)}; }, {0x7f7f});
  compare<Float16Bits>(
      [](std::uint32_t bits) { return Float16Bits{static_cast<std::uint16_t>(bits)}; }, {0x7bff});
}

TEST(MaxMagnitude, OfNothingFiniteIsZero) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> values = {inf, -inf, std::numeric_limits<float>::quiet_NaN()};
  EXPECT_EQ(max_magnitude(std::span<const float>(values)), 0.0f);
}

}  // namespace
}  // namespace slimgrad::kernels
