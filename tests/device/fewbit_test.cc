// Few-bit codes, backward from them, and backward from an output on devices: the bits of the CPU.
#include "device/fewbit.h"

#include <gtest/gtest.h>

#include "device/emulate.h"
#include "kernels/fewbit/invertible.h"
#include "math/fewbit/inverse_table.h"

namespace slimgrad::device {
namespace {

// Borders that values fall on, too, and levels with a zero.
kernels::StepLookup steps_of(int bits, bool is_even) {
  kernels::StepLookup steps{.bits = bits, .is_even = is_even};
  const int num_levels = 1 << bits;
  for (int i = 0; i + 1 < num_levels; ++i)
    steps.borders[i] = (is_even ? 0.0f : -1.5f) + 3.0f * static_cast<float>(i) / num_levels;
  for (int i = 0; i < num_levels; ++i)
    steps.levels[i] = i == num_levels / 2 ? 0.0f : -0.1f + 0.17f * static_cast<float>(i);
  return steps;
}

template <typename T, int kBits>
void test_steps(std::size_t size, std::size_t shift, Kind kind) {
  const kernels::StepLookup steps = steps_of(kBits, size % 2 == 0);
  const Array<T> x = make_values<T>(size, shift, kind, 1);
  const std::size_t num_words = fewbit::packed_bytes(size, kBits) / 4;
  Array<std::uint32_t> expected_codes(num_words, 0), codes(num_words, 0);
  kernels::pack_codes<T>(x.span(), steps, expected_codes.span());
  const auto shuffle = static_cast<std::uint32_t>(kBits);
  launch<StepCodes<T, kBits>>({x.data(), codes.data(), size, steps}, shuffle);
  ASSERT_TRUE(same_bits(expected_codes, codes)) << describe<T>(size, shift, kind) << " " << kBits;

  const Array<T> gradient = make_values<T>(size, shift, kind, 2);
  Array<T> expected(size, 0), got(size, shift);
  kernels::multiply_levels<T>(gradient.span(), codes.span(), steps, expected.span());
  launch<StepBackward<T, kBits>>({gradient.data(), codes.data(), got.data(), size, steps}, shuffle);
  ASSERT_TRUE(same_bits(expected, got)) << describe<T>(size, shift, kind) << " " << kBits;
}

template <typename T>
class DeviceFewbit : public ::testing::Test {};
TYPED_TEST_SUITE(DeviceFewbit, ValueTypes);

TYPED_TEST(DeviceFewbit, HasTheCodesAndGradientsOfTheCpu) {
  for_all_cases([](std::size_t size, std::size_t shift, Kind kind) {
    test_steps<TypeParam, 1>(size, shift, kind);
    test_steps<TypeParam, 2>(size, shift, kind);
    test_steps<TypeParam, 3>(size, shift, kind);
    test_steps<TypeParam, 4>(size, shift, kind);
  });
}

TYPED_TEST(DeviceFewbit, MultipliesInPlace) {
  using T = TypeParam;
  const kernels::StepLookup steps = steps_of(3, false);
  const Array<T> x = make_values<T>(1300, 0, Kind::kNormal, 1);
  Array<T> gradient = make_values<T>(1300, 0, Kind::kNormal, 2), expected(1300, 0);
  Array<std::uint32_t> codes(fewbit::packed_bytes(1300, 3) / 4, 0);
  kernels::pack_codes<T>(x.span(), steps, codes.span());
  kernels::multiply_levels<T>(std::as_const(gradient).span(), codes.span(), steps, expected.span());
  launch<StepBackward<T, 3>>({gradient.data(), codes.data(), gradient.data(), 1300, steps});
  EXPECT_TRUE(same_bits(expected, gradient));
}

TYPED_TEST(DeviceFewbit, HasTheGradientsOfTheCpuFromOutputs) {
  using T = TypeParam;
  for (const char* name : {"gelu", "silu", "mish"}) {
    const InverseTable& table = inverse_table(name);
    for_all_cases([&](std::size_t size, std::size_t shift, Kind kind) {
      const Array<T> y = make_values<T>(size, shift, kind, 3);
      const Array<T> gradient = make_values<T>(size, shift, Kind::kSomeBad, 4);
      Array<std::uint32_t> codes(fewbit::packed_bytes(size, 1) / 4, 0);
      std::mt19937 engine(5);
      for (std::uint32_t& word : codes.span()) word = static_cast<std::uint32_t>(engine());
      Array<T> expected(size, 0), got(size, shift);
      kernels::multiply_slopes<T>(gradient.span(), y.span(), codes.span(), table, expected.span());
      launch<InverseBackward<T>>(
          {gradient.data(), y.data(), codes.data(), got.data(), size, &table}, 1);
      ASSERT_TRUE(same_bits(expected, got)) << name << ", " << describe<T>(size, shift, kind);
    });
  }
}

}  // namespace
}  // namespace slimgrad::device
