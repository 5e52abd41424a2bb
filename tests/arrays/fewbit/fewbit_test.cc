#include <slimgrad/fewbit.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include <slimgrad/error.h>

#include "arrays/fewbit/fewbit.h"
#include "kernels/half_float.h"

namespace slimgrad {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

template <typename T>
std::vector<T> normal_values(std::size_t n, float scale = 2.0f) {
  std::mt19937 random(static_cast<unsigned>(n));
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<T> values(n);
  for (T& x : values) x = kernels::from_float<T>(normal(random));
  return values;
}

template <typename T>
std::vector<std::uint32_t> codes_of(const std::vector<T>& x, const StepTable& table) {
  std::vector<std::uint32_t> codes(num_code_words(x.size(), table));
  stepwise_codes(std::span<const T>(x), table, codes);
  return codes;
}

template <typename T>
class FewbitArrays : public testing::Test {};
using Types = testing::Types<float, BFloat16Bits, Float16Bits>;
TYPED_TEST_SUITE(FewbitArrays, Types);

// The gradient that comes back is the incoming one times the table's level at x, found here by
// counting the borders below it.
TYPED_TEST(FewbitArrays, BackwardMultipliesByTheLevelOfTheInput) {
  using T = TypeParam;
  for (const char* const name : {"relu", "gelu", "tanh"})  // tanh: a table of |x|
    for (const int bits : {1, 2, 3, 4})
      for (const std::size_t n : {0u, 1u, 511u, 513u, 5000u}) {
        const StepTable table = layer_steps(name, {}, bits);
        const std::vector<T> x = normal_values<T>(n), gradient = normal_values<T>(n, 0.1f);
        std::vector<T> result = gradient;
        stepwise_backward(std::span<const T>(result), codes_of(x, table), table,
                          std::span<T>(result));
        for (std::size_t i = 0; i < n; ++i) {
          const float value = kernels::to_float(x[i]);
          std::size_t level = 0;
          for (const double border : table.borders)
            level += static_cast<float>(border) < (table.even ? std::fabs(value) : value) ? 1 : 0;
          const float product =
              kernels::to_float(gradient[i]) * static_cast<float>(table.levels[level]);
          EXPECT_EQ(kernels::to_float(result[i]),
                    kernels::to_float(kernels::from_float<T>(product)))
              << name << " " << bits << " " << i;
        }
      }
}

// Callers with threads cut an array at multiples of 512 values.
TYPED_TEST(FewbitArrays, PartsAreTheWhole) {
  using T = TypeParam;
  const StepTable table = layer_steps("silu", {}, 3);
  const std::vector<T> x = normal_values<T>(2000);
  const std::vector<std::uint32_t> whole = codes_of(x, table);
  const auto borders = lookup_of_borders("test", table.borders, table.even);
  const auto levels = lookup_of_levels("test", table.levels);
  std::vector<std::uint32_t> parts(whole.size());
  std::vector<T> expected(x.size()), result(x.size());
  stepwise_backward(std::span<const T>(x), whole, table, std::span<T>(expected));
  for (const FewbitRange range : {FewbitRange{512, 1024}, {0, 512}, {1536, 464}}) {
    pack_codes<T>(x, borders, parts, range);
    multiply_levels<T>(x, parts, levels, result, range);
  }
  EXPECT_EQ(parts, whole);
  for (std::size_t i = 0; i < x.size(); ++i)
    EXPECT_EQ(kernels::float_bits(result[i]), kernels::float_bits(expected[i]));
}

TEST(FewbitArrays, TheOutputAndOneBitGiveTheSlope) {
  for (const char* const name : {"gelu", "gelu_tanh", "silu", "mish"}) {
    const StepTarget target = activation_target(name);
    std::vector<float> x, y;
    double output = 0;  // by Simpson's rule from 0, where all four are 0
    for (double at = 0; at < 6; at += 1.0 / 64) {
      x.push_back(static_cast<float>(at));
      y.push_back(static_cast<float>(output));
      output += (target.derivative(at) + 4 * target.derivative(at + 1.0 / 128) +
                 target.derivative(at + 1.0 / 64)) /
                6 / 64;
    }
    const std::vector<float> ones(x.size(), 1.0f);
    std::vector<float> slopes(x.size());
    const auto codes = codes_of(x, side_of_minimum(name));
    invertible_backward(std::span<const float>(ones), std::span<const float>(y), codes, name,
                        std::span(slopes));
    for (std::size_t i = 0; i < x.size(); ++i)
      EXPECT_NEAR(slopes[i], target.derivative(x[i]), 1e-5) << name << " at " << x[i];
  }
}

TEST(FewbitArrays, SaysWhatIsWrong) {
  const StepTable table = layer_steps("gelu", {}, 3);
  const std::vector<float> x(600);
  std::vector<float> result(600);
  std::vector<std::uint32_t> codes(num_code_words(x.size(), table));
  const std::span<const float> in(x);
  EXPECT_EQ(codes.size(), 2u * 16 * 3);
  const std::span<std::uint32_t> few = std::span(codes).first(codes.size() - 1);
  EXPECT_THAT([&] { stepwise_codes(in, table, few); },
              ThrowsMessage<InvalidArgument>(HasSubstr("got 95 for 600 values of 3 bits")));
  EXPECT_THAT([&] { stepwise_backward(in, few, table, std::span(result)); },
              ThrowsMessage<InvalidArgument>(HasSubstr("[stepwise_backward] expected")));
  EXPECT_THAT([&] { stepwise_backward(in, codes, table, std::span(result).first(599)); },
              ThrowsMessage<InvalidArgument>(HasSubstr("as many results as gradients")));
  EXPECT_THAT([&] { stepwise_codes(in, steps("gelu", 5), codes); },
              ThrowsMessage<InvalidArgument>(HasSubstr("2, 4, 8 or 16 levels")));
  EXPECT_THAT([&] { stepwise_codes(in, {.borders = {0.0}, .levels = {1.0}}, codes); },
              ThrowsMessage<InvalidArgument>(HasSubstr("1 levels and 1 borders")));
  const StepTable falling = {.borders = {1.0, 0.0, 2.0}, .levels = {0, 1, 2, 3}};
  codes.resize(num_code_words(x.size(), falling));
  EXPECT_THAT([&] { stepwise_codes(in, falling, codes); },
              ThrowsMessage<InvalidArgument>(HasSubstr("borders in ascending order, got 0")));
  EXPECT_THAT([&] { invertible_backward(in, in.first(599), codes, "gelu", std::span(result)); },
              ThrowsMessage<InvalidArgument>(HasSubstr("as many outputs as gradients")));
  codes.resize(num_code_words(x.size(), side_of_minimum("gelu")));
  EXPECT_THAT([&] { invertible_backward(in, in, codes, "relu", std::span(result)); },
              ThrowsMessage<InvalidArgument>(HasSubstr("relu")));
}

}  // namespace
}  // namespace slimgrad
