#include "arrays/saved/saved.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include <slimgrad/error.h>
#include <slimgrad/half.h>

namespace slimgrad {
namespace {

using testing::HasSubstr;

void one_by_one(std::int64_t count, const std::function<void(std::int64_t)>& task) {
  for (std::int64_t i = 0; i < count; ++i) task(i);
}
void from_last_on_threads(std::int64_t count, const std::function<void(std::int64_t)>& task) {
  std::vector<std::thread> threads;
  for (std::int64_t i = count; i-- > 0;) threads.emplace_back(task, i);
  for (std::thread& thread : threads) thread.join();
}

std::vector<float> relu_values(std::size_t num_values) {
  std::mt19937 engine(3);
  std::normal_distribution<float> normal;
  std::vector<float> values(num_values);
  for (float& value : values) value = std::max(0.0f, normal(engine));
  return values;
}

TEST(SavedArrays, DoNotDependOnWhoPacksWhat) {
  const std::vector<float> values = relu_values(150'001);
  for (const int bits : {8, 4, 2}) {
    const saved::Format format = saved_format("test", bits, 0, "stochastic");
    std::vector<std::uint32_t> a(saved::num_words(values.size(), format)), b(a.size(), ~0u);
    EXPECT_EQ(pack_saved<float>(values, format, 1, 2, one_by_one, a), 0u);
    pack_saved<float>(values, format, 1, 2, from_last_on_threads, b);
    EXPECT_EQ(a, b);
    std::vector<float> back(values.size()), other(values.size());
    unpack_saved<float>(a, format, one_by_one, back);
    unpack_saved<float>(a, format, from_last_on_threads, other);
    EXPECT_EQ(back, other);
    pack_saved<float>(values, format, 1, 3, one_by_one, b);
    EXPECT_NE(a, b);  // draws of another number
    pack_saved<float>(values, format, 2, 2, one_by_one, b);
    EXPECT_NE(a, b);
  }
}

TEST(SavedArrays, CountBadGroups) {
  std::vector<float> values = relu_values(100'000);
  values[70'000] = values[70'001] = values[99'999] = std::numeric_limits<float>::quiet_NaN();
  const saved::Format format = saved_format("test", 8, 256, "nearest");
  std::vector<std::uint32_t> words(saved::num_words(values.size(), format));
  EXPECT_EQ(pack_saved<float>(values, format, 1, 2, one_by_one, words), 2u);
  EXPECT_EQ(words.back(), 2u);
}

TEST(SavedArrays, SayWhatIsWrong) {
  const auto message = [](auto... arguments) -> std::string {
    try {
      saved_format("op", arguments...);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(message(3, 0, "nearest"), HasSubstr("[op] expected bits to be 8, 4 or 2, got 3"));
  EXPECT_THAT(message(8, 100, "nearest"), HasSubstr("expected group to be 16, 32, 64, 128, 256"));
  EXPECT_THAT(message(8, 1024, "nearest"), HasSubstr("got 1024"));
  EXPECT_THAT(message(8, 0, "up"), HasSubstr("expected rounding to be one of stochastic, nearest"));
  EXPECT_EQ(message(8, 0, "nearest"), "");
}

template <typename Word>
void exact_round_trip(std::size_t num_values, std::uint32_t zeros_of_8) {
  std::mt19937 engine(3);
  std::vector<Word> values(num_values), back(num_values, Word{1});
  for (Word& value : values)
    value = engine() % 8 < zeros_of_8 ? Word{0} : static_cast<Word>(engine());
  const ExactLayout layout =
      exact_layout(values.data(), num_values, sizeof(Word), from_last_on_threads);
  std::vector<std::uint8_t> bytes(layout.num_bytes());
  pack_exactly(values.data(), num_values, sizeof(Word), layout, from_last_on_threads, bytes);
  restore_exactly(bytes, sizeof(Word), from_last_on_threads, back.data(), num_values);
  EXPECT_EQ(back, values);
  EXPECT_THROW(restore_exactly(std::span(bytes).first(bytes.size() - 1), sizeof(Word), one_by_one,
                               back.data(), num_values),
               InvalidArgument);
}

TEST(ExactArrays, ComeBackToTheBit) {
  for (const std::size_t n : {1, 7, 8, 1000, 32768, 32769, 100'003}) {
    for (const std::uint32_t zeros : {0, 4, 8}) {
      exact_round_trip<std::uint16_t>(n, zeros);
      exact_round_trip<std::uint32_t>(n, zeros);
    }
  }
}

template <typename Word>
void mask_round_trip(std::size_t num_values, Word survivor) {
  std::mt19937 engine(3);
  std::vector<Word> values(num_values), back(num_values, Word{1});
  for (Word& value : values) value = engine() % 8 < 1 ? Word{0} : survivor;
  const auto found = only_survivor(values.data(), num_values, sizeof(Word), from_last_on_threads);
  ASSERT_TRUE(found.has_value());
  std::vector<std::uint8_t> bytes(exact::mask_bytes(num_values));
  keep_mask(values.data(), num_values, sizeof(Word), *found, from_last_on_threads, bytes);
  restore_exactly(bytes, sizeof(Word), from_last_on_threads, back.data(), num_values);
  EXPECT_EQ(back, values);
  EXPECT_THROW(restore_exactly(bytes, sizeof(Word), one_by_one, back.data(), num_values + 9),
               InvalidArgument);
  if (survivor != 0 && num_values > 10) {
    values[num_values - 1] = static_cast<Word>(survivor + 1);
    values[num_values - 2] = survivor;
    EXPECT_FALSE(only_survivor(values.data(), num_values, sizeof(Word), one_by_one).has_value());
  }
}

TEST(ExactArrays, OfOneValueAndZerosAreMasks) {
  for (const std::size_t n : {1, 8, 1000, 32769, 100'003}) {
    mask_round_trip<std::uint16_t>(n, 0x3f8e);
    mask_round_trip<std::uint32_t>(n, 0x3f8e38e4);
    mask_round_trip<std::uint32_t>(n, 0);
  }
}

TEST(ExactArrays, TakeABitForEveryZero) {
  const std::vector<std::uint32_t> values(32768);
  const ExactLayout layout = exact_layout(values.data(), values.size(), 4, one_by_one);
  EXPECT_EQ(layout.num_bytes(), 16u + 32768 / 8 + 16);
}

}  // namespace
}  // namespace slimgrad
