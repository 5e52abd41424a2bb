#include "kernels/fewbit/fewbit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/dispatch.h"
#include "kernels/half_float.h"

namespace slimgrad::kernels {
namespace {

StepLookup make_steps(int bits, bool is_even) {
  StepLookup steps{.bits = bits, .is_even = is_even};
  const int num_levels = 1 << bits;
  for (int i = 0; i + 1 < num_levels; ++i)
    steps.borders[i] = is_even ? 0.25f * static_cast<float>(i)
                               : 0.5f * static_cast<float>(i - num_levels / 2) + 0.125f;
  for (int i = 0; i < num_levels; ++i) steps.levels[i] = std::sin(static_cast<float>(i + 1));
  return steps;
}

// Random values, borders themselves and their neighbours, and everything special.
template <typename T>
std::vector<T> make_values(std::size_t num_values, const StepLookup& steps) {
  std::mt19937 engine(7);
  std::normal_distribution<float> normal(0, 2);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> special = {0.0f, -0.0f, kInfinity, -kInfinity, std::nanf(""), 1e-45f, -1e38f};
  for (const float border : steps.borders) {
    special.insert(special.end(), {border, -border, std::nextafter(border, kInfinity),
                                   std::nextafter(border, -kInfinity)});
  }
  std::vector<T> values(num_values);
  for (T& value : values) {
    const std::uint32_t choice = engine() % 256;
    value = from_float<T>(choice < special.size() ? special[choice] : normal(engine));
  }
  return values;
}

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  if (a.size() != b.size()) return false;
  return a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// A NaN may have any payload in float32; the 16-bit types have one NaN.
std::vector<float> with_one_nan(std::vector<float> values) {
  for (float& value : values)
    if (std::isnan(value)) value = std::nanf("");
  return values;
}
template <typename T>
std::vector<T> with_one_nan(std::vector<T> values) {
  return values;
}

std::vector<std::size_t> test_lengths() {
  std::vector<std::size_t> lengths;
  for (std::size_t n = 0; n <= 130; ++n) lengths.push_back(n);
  for (const std::size_t n : {511, 512, 513, 1024, 1500, 5003}) lengths.push_back(n);
  return lengths;
}

template <typename T>
class FewbitKernels : public testing::Test {
 protected:
  ~FewbitKernels() override { select_kernel_set("best"); }
};
using InputTypes = testing::Types<float, BFloat16Bits, Float16Bits>;
TYPED_TEST_SUITE(FewbitKernels, InputTypes);

// The specification against a third way: codes counted here, read by the layout's own function.
TYPED_TEST(FewbitKernels, SpecificationCountsBordersBelow) {
  for (int bits = 1; bits <= 4; ++bits) {
    for (const bool is_even : {false, true}) {
      const StepLookup steps = make_steps(bits, is_even);
      const std::vector<TypeParam> values = make_values<TypeParam>(1500, steps);
      std::vector<std::uint32_t> codes(fewbit::packed_bytes(values.size(), bits) / 4, ~0u);
      pack_codes_scalar<TypeParam>(values, steps, codes);
      for (std::size_t i = 0; i < 3 * fewbit::kBlockValues; ++i) {
        const std::size_t e = i % fewbit::kBlockValues;
        const std::uint32_t code =
            fewbit::code_at(&codes[i / 512 * fewbit::block_words(bits)], e / 16, e % 16, bits);
        if (i >= values.size()) {
          ASSERT_EQ(code, (1u << bits) - 1);  // of NaN
          continue;
        }
        const float x = is_even ? std::fabs(to_float(values[i])) : to_float(values[i]);
        const auto end = steps.borders + ((1 << bits) - 1);
        const auto expected =
            (std::isnan(x) ? end : std::lower_bound(steps.borders, end, x)) - steps.borders;
        ASSERT_EQ(code, expected) << "x = " << x;
      }
    }
  }
}

TYPED_TEST(FewbitKernels, EverySetGivesTheSpecificationsBits) {
  for (const std::string& set : kernel_sets()) {
    select_kernel_set(set);
    for (int bits = 1; bits <= 4; ++bits) {
      for (const bool is_even : {false, true}) {
        const StepLookup steps = make_steps(bits, is_even);
        for (const std::size_t n : test_lengths()) {
          const std::vector<TypeParam> values = make_values<TypeParam>(n, steps);
          std::vector<std::uint32_t> expected(fewbit::packed_bytes(n, bits) / 4);
          std::vector<std::uint32_t> codes(expected.size(), ~0u);
          pack_codes_scalar<TypeParam>(values, steps, expected);
          pack_codes<TypeParam>(values, steps, codes);
          ASSERT_EQ(codes, expected) << set << ' ' << bits << " bits, " << n << " values";

          std::vector<TypeParam> product(n), result(n);
          multiply_levels_scalar<TypeParam>(values, codes, steps, product);
          multiply_levels<TypeParam>(values, codes, steps, result);
          ASSERT_TRUE(same_bits(with_one_nan(result), with_one_nan(product)))
              << set << ' ' << bits << " bits, " << n << " values";
          // In place.
          result = values;
          multiply_levels<TypeParam>(result, codes, steps, result);
          ASSERT_TRUE(same_bits(with_one_nan(result), with_one_nan(product)));
        }
      }
    }
  }
}

// Nothing is read or written behind the end: the last array of a larger one, between guards. (Under
// AddressSanitizer the exact allocations of the test above say the same.)
TYPED_TEST(FewbitKernels, LeavesNeighboursAlone) {
  const StepLookup steps = make_steps(3, false);
  for (const std::string& set : kernel_sets()) {
    select_kernel_set(set);
    const std::vector<TypeParam> values = make_values<TypeParam>(700, steps);
    std::vector<std::uint32_t> codes(fewbit::packed_bytes(700, 3) / 4 + 2, 0xabcdef01u);
    pack_codes<TypeParam>(values, steps, std::span(codes).subspan(1, codes.size() - 2));
    EXPECT_EQ(codes.front(), 0xabcdef01u);
    EXPECT_EQ(codes.back(), 0xabcdef01u);
    std::vector<TypeParam> result(702, from_float<TypeParam>(42.0f));
    multiply_levels<TypeParam>(values, std::span(codes).subspan(1, codes.size() - 2), steps,
                               std::span(result).subspan(1, 700));
    EXPECT_EQ(to_float(result.front()), 42.0f);
    EXPECT_EQ(to_float(result.back()), 42.0f);
  }
}

// All 65536 values of the 16-bit types survive float32, and rounding agrees with a search for the
// nearest neighbour in double.
TEST(HalfValues, RoundTripAndNearest) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const BFloat16Bits b{static_cast<std::uint16_t>(bits)};
    const Float16Bits h{static_cast<std::uint16_t>(bits)};
    if (!std::isnan(to_float(b))) {
      EXPECT_EQ(from_float<BFloat16Bits>(to_float(b)).bits, bits);
    }
    if (!std::isnan(to_float(h))) {
      EXPECT_EQ(from_float<Float16Bits>(to_float(h)).bits, bits);
    }
  }
  // Between each two neighbours: a quarter, a half (to even), three quarters.
  for (std::uint16_t bits = 0; bits < 0x7bff; ++bits) {
    const float low = to_float(Float16Bits{bits});
    const float high = to_float(Float16Bits{static_cast<std::uint16_t>(bits + 1)});
    const float quarter = (high - low) / 4;
    const std::uint16_t even = static_cast<std::uint16_t>(bits + (bits & 1));
    EXPECT_EQ(from_float<Float16Bits>(low + quarter).bits, bits);
    EXPECT_EQ(from_float<Float16Bits>(low + 2 * quarter).bits, even);
    EXPECT_EQ(from_float<Float16Bits>(low + 3 * quarter).bits, bits + 1);
    EXPECT_EQ(from_float<Float16Bits>(-(low + 3 * quarter)).bits, (bits + 1) | 0x8000);
  }
  EXPECT_EQ(from_float<Float16Bits>(65519.99f).bits, 0x7bff);
  EXPECT_EQ(from_float<Float16Bits>(65520.0f).bits, 0x7c00);
  EXPECT_EQ(from_float<BFloat16Bits>(std::bit_cast<float>(0x7f7fffffu)).bits, 0x7f80);
}

}  // namespace
}  // namespace slimgrad::kernels
