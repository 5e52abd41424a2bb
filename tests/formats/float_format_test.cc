#include <slimgrad/float_format.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <slimgrad/error.h>

namespace slimgrad {
namespace {

TEST(FloatFormat, GridOf131IsWrittenOutByHand) {
  // bias 4, exponents -3..3, mantissa 1 or 1.5.
  EXPECT_THAT(FloatFormat(3, 1).values(), testing::ElementsAre(0, 0.125, 0.1875, 0.25, 0.375, 0.5,
                                                               0.75, 1, 1.5, 2, 3, 4, 6, 8, 12));
  EXPECT_THAT(FloatFormat(1, 0).values(), testing::ElementsAre(0, 1));
  EXPECT_THAT(FloatFormat(2, 0).values(), testing::ElementsAre(0, 0.5, 1, 2));
}

TEST(FloatFormat, EveryCodeOfEveryFormat) {
  for (int n2 = 1; n2 <= 7; ++n2) {
    for (int n1 = 0; n1 <= 7 - n2 && n1 <= 6; ++n1) {
      const FloatFormat format(n2, n1);
      SCOPED_TRACE(format.name());
      // Written from the definition, in other terms than the code: steps counted up from the
      // smallest value.
      const int half = format.num_codes() / 2;
      double expected = std::pow(2.0, 1 - std::pow(2.0, n2 - 1));
      double step = expected / std::pow(2.0, n1);
      for (int code = 0; code < half; ++code) {
        const double value = format.value(code);
        if (code < (1 << n1)) {
          EXPECT_EQ(value, 0.0);
          EXPECT_FALSE(std::signbit(value));
        } else {
          EXPECT_EQ(value, expected) << code;
          expected += step;
          if (((code + 1) & ((1 << n1) - 1)) == 0) step *= 2;
        }
        EXPECT_EQ(format.value(half + code), -value);
        EXPECT_TRUE(std::signbit(format.value(half + code)));
      }
      const auto grid = format.values();
      EXPECT_EQ(grid.size(), static_cast<std::size_t>(half - (1 << n1) + 1));
      EXPECT_TRUE(std::is_sorted(grid.begin(), grid.end()));
      EXPECT_EQ(grid[1], format.smallest());
      EXPECT_EQ(grid.back(), format.largest());
      EXPECT_NEAR(format.octaves(), std::pow(2, n2) - 2 + std::log2(2 - std::pow(2, -n1)), 1e-12);
      EXPECT_EQ(FloatFormat::parse(format.name()), format);
    }
  }
}

TEST(FloatFormat, RefusesWhatIsNoFormat) {
  for (const char* text : {"", "1-0-3", "1-8-0", "1-1-7", "1-5-3", "2-5-2", "1-5-2 ", "1-5", "e5m2",
                           "1--1-2", "1-a-2"})
    EXPECT_THROW(FloatFormat::parse(text), InvalidArgument) << text;
  try {
    FloatFormat(0, 3);
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(), "[FloatFormat] expected 1 to 7 exponent bits, got 0");
  }
}

TEST(FloatChoice, BitsToSplitOrAFormat) {
  for (int bits = 2; bits <= 8; ++bits) {
    const auto choice = parse_float_choice("fp" + std::to_string(bits));
    ASSERT_TRUE(choice);
    EXPECT_EQ(choice->bits, bits);
    EXPECT_FALSE(choice->format);
  }
  const auto format = parse_float_choice("1-4-1");
  ASSERT_TRUE(format && format->format);
  EXPECT_EQ(format->bits, 6);
  EXPECT_EQ(format->format->name(), "1-4-1");
  for (const char* const text :
       {"", "fp", "fp1", "fp9", "fp16", "fp6x", "FP6", "6", "1-9-9", "1-4"})
    EXPECT_FALSE(parse_float_choice(text)) << text;
}

}  // namespace
}  // namespace slimgrad
