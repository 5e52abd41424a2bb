// The scalar kernels are compared with a definition of their own in double; every other kernel set
// with the scalar one, bit by bit.
#include "kernels/apply/apply.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "arrays/apply/loop_treatment.h"
#include "kernels/dispatch.h"
#include "kernels/half_float.h"

namespace slimgrad {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<FloatFormat> all_formats() {
  std::vector<FloatFormat> formats;
  for (int exponent_bits = 1; exponent_bits <= 7; ++exponent_bits)
    for (int mantissa_bits = 0; mantissa_bits <= 6 && exponent_bits + mantissa_bits <= 7;
         ++mantissa_bits)
      formats.emplace_back(exponent_bits, mantissa_bits);
  return formats;
}

// Every grid value, every midpoint and the borders of the range, each with its neighbours among the
// floats, in both signs, at the scale.
std::vector<float> critical_values(const FloatFormat& format, float scale) {
  std::vector<float> values = {0.0f, -0.0f, kInf, -kInf, kNaN, 1e-45f, -1e-38f, 3e38f, -3.4e38f};
  const std::vector<double> grid = format.values();
  const auto add = [&](double at) {
    const float x = static_cast<float>(at * scale);
    for (const float near : {std::nextafter(x, 0.0f), x, std::nextafter(x, kInf)}) {
      values.push_back(near);
      values.push_back(-near);
    }
  };
  for (std::size_t i = 0; i < grid.size(); ++i) {
    add(grid[i]);
    if (i + 1 < grid.size()) add((grid[i] + grid[i + 1]) / 2);
  }
  add(grid.back() * 1.01);
  add(grid.back() * 2);
  add(grid[1] * 1e-3);
  return values;
}

// Rounding to nearest by looking through the grid, in double. The quotient is the float32 product
// with the inverse, as the interface promises. A tie is broken by the parity of the code.
float nearest_by_search(float x, const FloatFormat& format, float scale) {
  if (!std::isfinite(x)) return x;
  // Far above the grid the distances to its values are the same in double.
  const double quotient =
      std::min<double>(std::fabs(x) * kernels::inverse_of(scale), 2 * format.largest());
  const auto first = 1u << format.mantissa_bits();
  const auto last = static_cast<std::uint32_t>(format.num_codes()) / 2 - 1;
  if (quotient < format.smallest()) return 0.0f;
  std::uint32_t best = first;
  for (std::uint32_t code = first; code <= last; ++code) {
    const double distance = std::fabs(quotient - format.value(code));
    const double best_distance = std::fabs(quotient - format.value(best));
    if (distance < best_distance || (distance == best_distance && code % 2 == 0)) best = code;
  }
  return std::copysign(static_cast<float>(format.value(best)) * scale, x);
}

kernels::LoopTreatment quantizing(const Quantizer& quantizer, DType type = DType::kFloat32) {
  kernels::LoopTreatment treatment;
  treatment.quantizes = true;
  treatment.grid = make_grid("test", quantizer, type);
  return treatment;
}

template <typename T>
std::vector<T> applied_scalar(const kernels::LoopTreatment& treatment, const std::vector<T>& in) {
  std::vector<T> out(in.size());
  kernels::apply_scalar(treatment, in.data(), out.data(), in.size(), 0);
  return out;
}

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

TEST(ApplyScalar, NearestIsWhatASearchThroughTheGridFinds) {
  for (const FloatFormat& format : all_formats())
    for (const float scale : {1.0f, 0x1p-20f, 0.3f, 1234.5f}) {
      const std::vector<float> in = critical_values(format, scale);
      const std::vector<float> out = applied_scalar(quantizing({format, scale}), in);
      for (std::size_t i = 0; i < in.size(); ++i) {
        const float expected = nearest_by_search(in[i], format, scale);
        ASSERT_EQ(std::bit_cast<std::uint32_t>(out[i]), std::bit_cast<std::uint32_t>(expected))
            << format.name() << " scale " << scale << " x " << in[i] << " got " << out[i]
            << " expected " << expected;
      }
    }
}

// Each result is a neighbour; the share of upper ones is (y - l) / (u - l) within 4 standard errors
// of n = 20,000 draws.
TEST(ApplyScalar, StochasticRoundingIsUnbiased) {
  constexpr std::size_t n = 20000;
  for (const FloatFormat& format : {FloatFormat(3, 0), FloatFormat(3, 2), FloatFormat(5, 2)}) {
    const std::vector<double> grid = format.values();
    const kernels::LoopTreatment treatment =
        quantizing({format, 1.0, Rounding::kStochastic, Underflow::kStochastic});
    for (std::size_t cell = 0; cell + 1 < std::min<std::size_t>(grid.size(), 12); ++cell)
      for (const double share : {0.0, 0.01, 0.5, 0.83}) {
        const double l = grid[cell], u = grid[cell + 1];
        const auto x = static_cast<float>(l + share * (u - l));
        const std::vector<float> out = applied_scalar(treatment, std::vector<float>(n, -x));
        double up = 0;
        for (const float y : out) {
          ASSERT_TRUE(-y == l || -y == u) << y;
          up += -y == u;
        }
        const double p = (x - l) / (u - l);
        EXPECT_NEAR(up / n, p, 4 * std::sqrt(p * (1 - p) / n)) << format.name() << " " << x;
      }
  }
}

TEST(ApplyScalar, PruningIsUnbiasedAndCounts) {
  constexpr std::size_t n = 100000;
  kernels::LoopTreatment treatment;
  treatment.threshold = 0.7f;
  for (const float x : {0.7f, -0.35f, 0.01f, 1e-5f, -0.0f, 0.71f, -kInf}) {
    const std::vector<float> in(n, x);
    std::vector<float> out(n);
    const ApplyCounts counts = kernels::apply_scalar(treatment, in.data(), out.data(), n, 0);
    if (std::fabs(x) > 0.7f) {
      EXPECT_EQ(out, in);
      EXPECT_EQ(counts, (ApplyCounts{0, 0, std::isinf(x) ? n : 0}));
      continue;
    }
    std::uint64_t zeros = 0, reached = 0;
    for (const float y : out) {
      zeros += std::bit_cast<std::uint32_t>(y) == 0;  // +0
      reached += y == std::copysign(0.7f, x);
    }
    EXPECT_EQ(zeros + reached, n);
    EXPECT_EQ(counts, (ApplyCounts{zeros, reached, 0}));
    const double p = std::fabs(x) / 0.7f;
    EXPECT_NEAR(static_cast<double>(reached) / n, p, 4 * std::sqrt(p * (1 - p) / n)) << x;
  }
}

// Halves convert exactly and back.
TEST(HalfFloat, EveryPatternComesBack) {
  for (std::uint32_t pattern = 0; pattern < 65536; ++pattern) {
    const auto bits = static_cast<std::uint16_t>(pattern);
    EXPECT_EQ(kernels::from_float_bits<Float16Bits>(kernels::float_bits(Float16Bits{bits})).bits,
              bits);
    EXPECT_EQ(kernels::from_float_bits<BFloat16Bits>(kernels::float_bits(BFloat16Bits{bits})).bits,
              bits);
  }
}

TEST(HalfFloat, RoundsToNearestEven) {
  const auto half = [](float x) {
    return kernels::from_float_bits<Float16Bits>(std::bit_cast<std::uint32_t>(x)).bits;
  };
  EXPECT_EQ(half(1.0f + 0x1p-11f), 0x3c00);     // a tie, to even
  EXPECT_EQ(half(1.0f + 0x3p-11f), 0x3c02);     // a tie, to even
  EXPECT_EQ(half(1.0f + 0x1.01p-11f), 0x3c01);  // above a tie
  EXPECT_EQ(half(0x1p-25f), 0x0000);            // a tie at the smallest subnormal
  EXPECT_EQ(half(0x1.01p-25f), 0x0001);
  EXPECT_EQ(half(-0x1.ffep-15f), 0x8400);  // a subnormal that rounds up to normal
  EXPECT_EQ(half(65504.0f), 0x7bff);
  const auto brain = [](float x) {
    return kernels::from_float_bits<BFloat16Bits>(std::bit_cast<std::uint32_t>(x)).bits;
  };
  EXPECT_EQ(brain(1.0f + 0x1p-8f), 0x3f80);
  EXPECT_EQ(brain(1.0f + 0x3p-8f), 0x3f82);
  EXPECT_EQ(brain(1.0f + 0x1.01p-8f), 0x3f81);
}

// ---- every kernel set against the scalar one ---------------------------------------------------

std::vector<float> gradient_like(std::size_t num_values, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> values(num_values);
  for (float& x : values) {
    x = std::exp(normal(engine)) * (engine() % 2 ? 1.0f : -1.0f);
    if (engine() % 5 == 0) x = 0;
    if (engine() % 97 == 0) x = engine() % 2 ? kNaN : -kInf;
  }
  return values;
}

template <typename T>
std::vector<T> converted(const std::vector<float>& values) {
  std::vector<T> result;
  for (float x : values) {
    if constexpr (std::is_same_v<T, Float16Bits>)
      if (std::isfinite(x)) x = std::clamp(x, -65504.0f, 65504.0f);
    result.push_back(kernels::from_float_bits<T>(std::bit_cast<std::uint32_t>(x)));
  }
  return result;
}

std::vector<kernels::LoopTreatment> plans(const FloatFormat& format, float scale, DType type) {
  std::vector<kernels::LoopTreatment> result(1);  // the first does nothing
  for (const Rounding rounding : {Rounding::kNearest, Rounding::kStochastic})
    for (const Underflow underflow : {Underflow::kZero, Underflow::kStochastic})
      result.push_back(quantizing({format, scale, rounding, underflow}, type));
  for (std::size_t i = 0; i < 5; ++i) {
    result.push_back(result[i]);
    result.back().threshold = 1.5f;
  }
  for (kernels::LoopTreatment& treatment : result) treatment.seed = 0x123456789abcdef;
  return result;
}

template <typename T>
void expect_same_as_scalar(const kernels::LoopTreatment& treatment, const std::vector<T>& in,
                           std::uint64_t first_index, const std::string& where) {
  std::vector<T> expected(in.size()), out(in.size());
  const ApplyCounts expected_counts =
      kernels::apply_scalar(treatment, in.data(), expected.data(), in.size(), first_index);
  const ApplyCounts counts =
      kernels::apply(treatment, in.data(), out.data(), in.size(), first_index);
  EXPECT_EQ(counts, expected_counts) << where;
  EXPECT_TRUE(same_bits(out, expected)) << where;
  std::vector<T> in_place = in;
  kernels::apply(treatment, in_place.data(), in_place.data(), in.size(), first_index);
  EXPECT_TRUE(same_bits(in_place, expected)) << where << " in place";
  if (!treatment.quantizes) return;
  std::vector<std::uint8_t> expected_codes(in.size()), codes(in.size());
  const ApplyCounts expected_code_counts =
      kernels::encode_scalar(treatment, in.data(), expected_codes.data(), in.size(), first_index);
  EXPECT_EQ(kernels::encode(treatment, in.data(), codes.data(), in.size(), first_index),
            expected_code_counts)
      << where;
  EXPECT_EQ(codes, expected_codes) << where;
}

class KernelSets : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { kernels::select_kernel_set(GetParam()); }
  void TearDown() override { kernels::select_kernel_set("best"); }

  template <typename T>
  void compare_all(const FloatFormat& format, float scale) {
    const std::string where = format.name() + " at " + std::to_string(scale);
    const auto critical = converted<T>(critical_values(format, scale));
    for (const kernels::LoopTreatment& treatment : plans(format, scale, kDType<T>))
      expect_same_as_scalar(treatment, critical, 256, where);
  }
};

TEST_P(KernelSets, CriticalValuesOfEveryFormat) {
  for (const FloatFormat& format : all_formats())
    for (const float scale : {1.0f, 0.3f}) {
      compare_all<float>(format, scale);
      compare_all<BFloat16Bits>(format, scale);
      compare_all<Float16Bits>(format, scale);
    }
}

// Long enough for some hundred refinements.
TEST_P(KernelSets, LongArrays) {
  const std::vector<float> values = gradient_like(1 << 20, 3);
  for (const kernels::LoopTreatment& treatment : plans(FloatFormat(3, 2), 0.3f, DType::kFloat32))
    expect_same_as_scalar(treatment, values, std::uint64_t{1} << 37, "long");
}

TEST_P(KernelSets, EveryShortLength) {
  const std::vector<float> values = gradient_like(300, 4);
  for (std::size_t length = 0; length <= values.size(); ++length) {
    const std::vector<float> in(values.begin(), values.begin() + static_cast<long>(length));
    for (const kernels::LoopTreatment& treatment : plans(FloatFormat(2, 1), 1.0f, DType::kFloat32))
      expect_same_as_scalar(treatment, in, 512, "length " + std::to_string(length));
    for (const kernels::LoopTreatment& treatment : plans(FloatFormat(2, 1), 1.0f, DType::kFloat16))
      expect_same_as_scalar(treatment, converted<Float16Bits>(in), 0,
                            "half " + std::to_string(length));
  }
}

// Probabilities at the edge between leading bits and refinement, where the vector code takes its
// rare branch nearly always: fractions that are multiples of 2^-16.
TEST_P(KernelSets, RefinementBranch) {
  std::vector<float> values;
  const RandomStream random(0x123456789abcdef, Stream::kRound);
  for (std::uint64_t i = 0; i < 4096; ++i) {
    // y = 1 + p / 4 has the fraction p between the grid values 1 and 1.25 of 1-3-2.
    const float leading = static_cast<float>(random.draw(i)) * 0x1p-16f;
    values.push_back(1 + (leading + static_cast<float>(i % 32) * 0x1p-21f) / 4);
  }
  kernels::LoopTreatment treatment = quantizing({FloatFormat(3, 2), 1.0, Rounding::kStochastic});
  treatment.seed = 0x123456789abcdef;
  expect_same_as_scalar(treatment, values, 0, "refinement");
}

INSTANTIATE_TEST_SUITE_P(All, KernelSets, testing::ValuesIn(kernels::kernel_sets()),
                         [](const auto& set) { return set.param; });

}  // namespace
}  // namespace slimgrad
