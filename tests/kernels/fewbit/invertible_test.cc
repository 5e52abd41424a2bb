#include "kernels/fewbit/invertible.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <slimgrad/steps.h>

#include "kernels/dispatch.h"
#include "kernels/half_float.h"
#include "math/fewbit/inverse_table.h"

namespace slimgrad::kernels {
namespace {

double value_of(std::string_view name, double x) {
  if (name == "gelu") return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
  if (name == "silu") return x / (1 + std::exp(-x));
  if (name == "mish") return x * std::tanh(std::log1p(std::exp(x)));
  const double u = std::sqrt(8 / M_PI) * x * (1 + 0.044715 * x * x);
  return x / (1 + std::exp(-u));
}

class Invertible : public testing::TestWithParam<const char*> {
 protected:
  ~Invertible() override { select_kernel_set("best"); }
};

// Near the minimum an error d of the output, half an ulp of the minimum, costs sqrt(2 f'' d), at
// most 2e-4 in float32; elsewhere the table and the rounding of the output remain.
TEST_P(Invertible, RecoversTheSlope) {
  const InverseTable& table = inverse_table(GetParam());
  const auto slope = activation_target(GetParam()).derivative;
  std::mt19937 engine(1);
  std::normal_distribution<float> normal(0, 3);
  for (int i = 0; i < 200000; ++i) {
    const float x = normal(engine);
    const float y = static_cast<float>(value_of(GetParam(), x));
    const double error =
        std::abs(slope_from_output(y, x > table.minimizer, table) - slope(double{x}));
    ASSERT_LT(error, std::abs(x - table.minimizer) < 0.1 ? 2e-4 : 3e-6) << "x = " << x;
  }
}

TEST_P(Invertible, MinimumIsThere) {
  const InverseTable& table = inverse_table(GetParam());
  EXPECT_NEAR(activation_target(GetParam()).derivative(table.minimizer), 0, 1e-7);
  EXPECT_FLOAT_EQ(static_cast<float>(value_of(GetParam(), table.minimizer)), table.minimum);
}

TEST_P(Invertible, SpecialOutputs) {
  const InverseTable& table = inverse_table(GetParam());
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const bool is_right : {false, true}) {
    EXPECT_TRUE(std::isnan(slope_from_output(std::nanf(""), is_right, table)));
    EXPECT_EQ(slope_from_output(table.minimum, is_right, table), 0.0f);
    EXPECT_EQ(slope_from_output(table.minimum - 1, is_right, table), 0.0f);
  }
  EXPECT_EQ(slope_from_output(kInfinity, true, table), 1.0f);
  EXPECT_EQ(slope_from_output(100.0f, true, table), 1.0f);
  EXPECT_EQ(slope_from_output(0.0f, false, table), 0.0f);
  EXPECT_EQ(slope_from_output(-0.0f, false, table), 0.0f);
  EXPECT_NEAR(slope_from_output(0.0f, true, table), activation_target(GetParam()).derivative(0.0),
              1e-6);
}

template <typename T>
void expect_sets_agree(const char* name) {
  const InverseTable& table = inverse_table(name);
  std::mt19937 engine(3);
  std::normal_distribution<float> normal(0, 3);
  for (const std::size_t n : {0, 1, 130, 512, 1500}) {
    std::vector<T> y(n), gradient(n), expected(n), result(n);
    std::vector<std::uint32_t> codes(fewbit::packed_bytes(n, 1) / 4);
    for (std::uint32_t& word : codes) word = engine();
    for (std::size_t i = 0; i < n; ++i) {
      // Whatever bits: a wrong branch or an impossible output must not read out of the table.
      const float wild = std::bit_cast<float>(static_cast<std::uint32_t>(engine()));
      y[i] = from_float<T>(i % 3 ? static_cast<float>(value_of(name, normal(engine))) : wild);
      gradient[i] = from_float<T>(normal(engine));
    }
    multiply_slopes_scalar<T>(gradient, y, codes, table, expected);
    for (const std::string& set : kernel_sets()) {
      select_kernel_set(set);
      multiply_slopes<T>(gradient, y, codes, table, result);
      for (std::size_t i = 0; i < n; ++i) {
        const float a = to_float(result[i]), b = to_float(expected[i]);
        ASSERT_TRUE((std::isnan(a) && std::isnan(b)) ||
                    std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b))
            << set << ' ' << a << ' ' << b;
      }
    }
  }
}

TEST_P(Invertible, EverySetGivesTheSpecificationsBits) {
  expect_sets_agree<float>(GetParam());
  expect_sets_agree<BFloat16Bits>(GetParam());
  expect_sets_agree<Float16Bits>(GetParam());
}

INSTANTIATE_TEST_SUITE_P(All, Invertible, testing::Values("gelu", "gelu_tanh", "silu", "mish"));

}  // namespace
}  // namespace slimgrad::kernels
