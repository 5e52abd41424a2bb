// Levels as symbols and extra bits, and back, on every CPU target.
#include "kernels/coding/open_levels.h"

#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <vector>

#include "for_each_target.h"

namespace slimgrad {
namespace {

struct Split {
  std::vector<std::uint8_t> symbols, extra;
};

Split split(const std::vector<std::int32_t>& levels) {
  Split result;
  result.symbols.resize(levels.size());
  result.extra.resize(kernels::extra_bound(levels.size()));
  kernels::ExtraWriter writer(result.extra.data());
  for (std::size_t i = 0; i < levels.size(); i += kernels::kLevelsAtOnce) {
    const std::size_t count = std::min(kernels::kLevelsAtOnce, levels.size() - i);
    kernels::split_levels(std::span(levels).subspan(i, count), result.symbols.data() + i, writer);
  }
  result.extra.resize(static_cast<std::size_t>(writer.end() - result.extra.data()));
  return result;
}

// -1: the string does not fit the symbols.
std::vector<std::int32_t> joined(const Split& split) {
  std::vector<std::int32_t> levels(split.symbols.size());
  for (std::size_t i = 0; i < levels.size(); ++i) levels[i] = split.symbols[i] - kOpenCentre;
  const bool fit = kernels::visit_extra_levels(
      split.symbols, split.extra, [&](std::size_t i, std::int32_t level) { levels[i] = level; });
  return fit ? levels : std::vector<std::int32_t>{-1};
}

std::vector<std::int32_t> levels_of_all_sizes(std::size_t n) {
  std::mt19937 random(7);
  std::vector<std::int32_t> levels(n);
  for (auto& level : levels) {
    const auto magnitude = static_cast<std::int32_t>(random() >> (12 + random() % 20));
    level = (random() & 1) != 0 ? magnitude : -magnitude;
  }
  return levels;
}

TEST(OpenLevels, EveryLevelComesBackAndGroupsAreOctaves) {
  std::vector<std::int32_t> levels;
  for (std::int32_t k = -300; k <= 300; ++k) levels.push_back(k);
  for (std::int32_t octave = kFirstOctave; octave <= kLastOctave; ++octave)
    for (const std::int32_t k : {kGroupOffset + (1 << octave), kGroupOffset + (2 << octave) - 1})
      levels.insert(levels.end(), {k, -k});
  const Split result = split(levels);
  EXPECT_EQ(joined(result), levels);
  for (std::size_t i = 0; i < levels.size(); ++i) {
    const int distance = std::abs(result.symbols[i] - kOpenCentre);
    EXPECT_GE(std::abs(levels[i]), first_level(distance));
    EXPECT_LT(std::abs(levels[i]), first_level(distance + 1));
    EXPECT_EQ(has_extra(result.symbols[i]), std::abs(levels[i]) > kLargestDirectLevel);
    EXPECT_EQ(1 << num_extra_bits(distance), first_level(distance + 1) - first_level(distance));
  }
}

TEST(OpenLevels, EveryTargetWritesTheSameBytes) {
  for (const std::size_t n : {0, 1, 63, 64, 65, 4096, 4097, 10000}) {
    const std::vector<std::int32_t> levels = levels_of_all_sizes(n);
    std::optional<Split> expected;
    for_each_target([&](const char*) {
      const Split result = split(levels);
      if (!expected) expected = result;
      EXPECT_EQ(result.symbols, expected->symbols);
      EXPECT_EQ(result.extra, expected->extra);
      EXPECT_EQ(joined(result), levels);
    });
  }
}

TEST(OpenLevels, AStringOfAnotherLengthOrWithBitsBehindItIsRefused) {
  Split result = split({200, 5, -1000, 130, 0});
  ASSERT_GT(result.extra.size(), 2u);
  Split cut = result, longer = result, padded = result;
  cut.extra.pop_back();
  longer.extra.push_back(0);
  padded.extra.back() |= 0x80;
  const std::vector<std::int32_t> refused = {-1};
  EXPECT_NE(joined(result), refused);
  EXPECT_EQ(joined(cut), refused);
  EXPECT_EQ(joined(longer), refused);
  EXPECT_EQ(joined(padded), refused);
}

}  // namespace
}  // namespace slimgrad
