// Quantizing, pruning, both and top-k on devices: the bits and the counts of the CPU.
#include "device/apply.h"

#include <gtest/gtest.h>

#include <slimgrad/apply.h>
#include <slimgrad/error.h>

#include "arrays/apply/loop_treatment.h"
#include "device/emulate.h"

namespace slimgrad::device {
namespace {

// Everything that a treatment may be, and numbers at the ends of what they may be.
std::vector<Treatment> treatments() {
  std::vector<Treatment> all = {{}};
  const Quantizer quantizers[] = {
      {FloatFormat(2, 1), 0.013, Rounding::kStochastic, Underflow::kStochastic},
      {FloatFormat(3, 0), 0.013, Rounding::kNearest, Underflow::kZero},
      {FloatFormat(4, 3), 0.7, Rounding::kNearest, Underflow::kStochastic},
      {FloatFormat(5, 2), 1e-30, Rounding::kStochastic, Underflow::kZero},
      {FloatFormat(2, 1), 2e-38, Rounding::kStochastic, Underflow::kStochastic},  // no inverse
  };
  for (const double threshold : {0.0, 1.1, 0.01, 3e-6, 1e-39})
    for (const bool drops : {false, true}) {
      if (threshold > 0) all.push_back({.threshold = threshold, .drops = drops});
      for (const Quantizer& quantizer : quantizers)
        all.push_back({.threshold = threshold, .drops = drops, .quantizer = quantizer});
    }
  for (std::size_t i = 0; i < all.size(); ++i) all[i].seed = 0x9e3779b97f4a7c15u * (i + 1);
  return all;
}

template <typename T, Treats kTreats>
void launch_apply(const ApplyArguments<T>& arguments, std::uint32_t shuffle) {
  launch<Apply<T, kTreats>>(arguments, shuffle);
}

template <typename T>
void launch_for(const Treatment& treatment, ApplyArguments<T> arguments, std::uint32_t shuffle) {
  arguments.treatment = loop_treatment<T>("test", treatment);
  switch (treats_of(arguments.treatment, treatment.drops)) {
    case Treats::kQuantize:
      return launch_apply<T, Treats::kQuantize>(arguments, shuffle);
    case Treats::kPrune:
      return launch_apply<T, Treats::kPrune>(arguments, shuffle);
    case Treats::kPruneQuantize:
      return launch_apply<T, Treats::kPruneQuantize>(arguments, shuffle);
    case Treats::kDrop:
      return launch_apply<T, Treats::kDrop>(arguments, shuffle);
  }
}

template <typename T>
class DeviceApply : public ::testing::Test {};
TYPED_TEST_SUITE(DeviceApply, ValueTypes);

TYPED_TEST(DeviceApply, HasTheBitsAndCountsOfTheCpu) {
  using T = TypeParam;
  std::size_t num_applied = 0, number = 0;
  for (const Treatment& treatment : treatments()) {
    for_all_cases([&](std::size_t size, std::size_t shift, Kind kind) {
      if (++number % 3 != 0) return;  // A third of all, another third for each treatment.
      const Array<T> in = make_values<T>(size, shift, kind, 1);
      Array<T> expected(size, 0), got(size, shift);
      ApplyCounts counts;
      try {
        counts = apply(treatment, in.span(), expected.span(), 0);
      } catch (const InvalidArgument&) {
        return;  // a scale or threshold that the type does not have
      }
      ++num_applied;
      std::uint64_t found[3] = {};
      launch_for<T>(treatment, {in.data(), got.data(), size, found, {}},
                    static_cast<std::uint32_t>(num_applied % 3));
      const std::string message = describe<T>(size, shift, kind);
      ASSERT_TRUE(same_bits(expected, got)) << message;
      ASSERT_EQ(counts.zeros, found[0]) << message;
      ASSERT_EQ(counts.at_threshold, found[1]) << message;
      ASSERT_EQ(counts.nonfinite, found[2]) << message;
    });
  }
  EXPECT_GT(num_applied, 1000u);
}

TYPED_TEST(DeviceApply, WorksInPlaceAndWithoutCounts) {
  using T = TypeParam;
  const Treatment treatment = {
      .threshold = 0.5,
      .quantizer = Quantizer{FloatFormat(4, 3), 0.01, Rounding::kStochastic, Underflow::kZero},
      .seed = 3};
  Array<T> values = make_values<T>(5000, 0, Kind::kSomeBad, 2);
  Array<T> expected(5000, 0);
  apply(treatment, std::as_const(values).span(), expected.span(), 0);
  launch_for<T>(treatment, {values.data(), values.data(), values.size(), nullptr, {}}, 1);
  EXPECT_TRUE(same_bits(expected, values));
}

TYPED_TEST(DeviceApply, DoesNothingToNothing) {
  using Kernel = Apply<TypeParam, Treats::kPrune>;
  EXPECT_EQ(Kernel::num_blocks({nullptr, nullptr, 0, nullptr, {}}), 0u);
}

}  // namespace
}  // namespace slimgrad::device
