#include "kernels/coding/value_symbols.h"

#include <gtest/gtest.h>

#include <bit>
#include <random>
#include <type_traits>
#include <vector>

#include <slimgrad/half.h>

namespace slimgrad::kernels {
namespace {

// Plain loops, so there is one version of each and no target to choose.
template <typename T>
class ValueSymbols : public testing::Test {
 protected:
  using Word = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint16_t>;
  static constexpr Word kSign = static_cast<Word>(Word{1} << (8 * sizeof(T) - 1));
  static constexpr Word kThreshold = sizeof(T) == 4 ? 0x3e800000 : 0x3400;

  static std::vector<T> as_values(const std::vector<Word>& words) {
    std::vector<T> values;
    for (const Word word : words) values.push_back(std::bit_cast<T>(word));
    return values;
  }
  static std::vector<Word> as_words(const std::vector<T>& values) {
    std::vector<Word> words;
    for (const T value : values) words.push_back(std::bit_cast<Word>(value));
    return words;
  }

  // A share of +-threshold among any bits: NaN, Inf, -0 and the threshold's neighbours too.
  static std::vector<Word> words(std::size_t n, double pruned) {
    std::mt19937 random(static_cast<unsigned>(n));
    std::uniform_real_distribution<double> uniform;
    std::vector<Word> result(n);
    for (Word& word : result) {
      const auto sign = static_cast<Word>(random() % 2 == 0 ? 0 : kSign);
      if (uniform(random) < pruned)
        word = static_cast<Word>(kThreshold | sign);
      else if (random() % 4 == 0)
        word = static_cast<Word>((kThreshold + (random() % 2 == 0 ? 1 : -1)) | sign);
      else
        word = static_cast<Word>(random());
    }
    return result;
  }
};
using Types = testing::Types<float, BFloat16Bits, Float16Bits>;
TYPED_TEST_SUITE(ValueSymbols, Types);

TYPED_TEST(ValueSymbols, ClassesAndSurvivorsAgreeWithOneByOne) {
  using Word = typename TestFixture::Word;
  const TypeParam threshold = std::bit_cast<TypeParam>(TestFixture::kThreshold);
  // 16 are looked at together; at 0.02 some of these groups survive as a whole and others do not.
  for (const double pruned : {0.0, 0.02, 0.5, 1.0})
    for (const std::size_t n : {0u, 1u, 15u, 16u, 17u, 32u, 1000u}) {
      SCOPED_TRACE(testing::Message() << n << " values, pruned " << pruned);
      const std::vector<Word> words = TestFixture::words(n, pruned);
      std::vector<std::uint8_t> expected;
      std::vector<Word> expected_survivors;
      for (const Word word : words) {
        if (word == TestFixture::kThreshold) {
          expected.push_back(kPositiveClass);
        } else if (word == (TestFixture::kThreshold | TestFixture::kSign)) {
          expected.push_back(kNegativeClass);
        } else {
          expected.push_back(kSurvivorClass);
          expected_survivors.push_back(word);
        }
      }
      const std::vector<TypeParam> values = TestFixture::as_values(words);
      std::vector<std::uint8_t> classes(n, 77);
      std::vector<TypeParam> survivors(n), back(n);
      const std::size_t count = split_classes(std::span<const TypeParam>(values), threshold,
                                              classes.data(), survivors.data());
      ASSERT_EQ(count, expected_survivors.size());
      EXPECT_EQ(classes, expected);
      survivors.resize(count);
      EXPECT_EQ(TestFixture::as_words(survivors), expected_survivors);
      survivors.resize(count + 1);
      merge_classes(std::span<const std::uint8_t>(classes), threshold, survivors.data(),
                    back.data());
      EXPECT_EQ(TestFixture::as_words(back), words);
    }
}

TYPED_TEST(ValueSymbols, LooksUpEverySymbol) {
  using Word = typename TestFixture::Word;
  std::array<TypeParam, 256> table;
  std::vector<std::uint8_t> symbols;
  std::vector<Word> expected;
  for (std::size_t s = 0; s < 256; ++s)
    table[s] = std::bit_cast<TypeParam>(static_cast<Word>(40503 * s + 1));
  for (std::size_t i = 0; i < 1001; ++i) {
    symbols.push_back(static_cast<std::uint8_t>(37 * i));
    expected.push_back(static_cast<Word>(40503 * std::size_t{symbols.back()} + 1));
  }
  std::vector<TypeParam> values(symbols.size());
  look_up(std::span<const std::uint8_t>(symbols), table, values.data());
  EXPECT_EQ(TestFixture::as_words(values), expected);
}

TEST(ValueSymbolCounts, LargestAndCount) {
  EXPECT_EQ(largest_symbol({}), 0);
  EXPECT_EQ(count_symbol({}, 0), 0u);
  for (const std::size_t n : {1u, 31u, 32u, 1000u})
    for (const std::size_t at : {std::size_t{0}, n / 2, n - 1}) {
      std::vector<std::uint8_t> symbols(n, 3);
      symbols[at] = 255;
      EXPECT_EQ(largest_symbol(symbols), 255) << n << ' ' << at;
      EXPECT_EQ(count_symbol(symbols, 255), 1u) << n << ' ' << at;
      EXPECT_EQ(count_symbol(symbols, 3), n - 1) << n << ' ' << at;
    }
}

}  // namespace
}  // namespace slimgrad::kernels
