#include "kernels/coding/escapes.h"

#include <gtest/gtest.h>

#include "arrays/coding/symbols.h"

namespace slimgrad::kernels {
namespace {

TEST(Escapes, ASetHoldsWhatWasInserted) {
  ByteSet set;
  for (int byte = 0; byte < 256; byte += 3) set.insert(static_cast<std::uint8_t>(byte));
  for (int byte = 0; byte < 256; ++byte)
    EXPECT_EQ(set.contains(static_cast<std::uint8_t>(byte)), byte % 3 == 0) << byte;
}

TEST(Escapes, GoOutAndComeBackWithEveryKernelSet) {
  for (const std::size_t n : {0u, 1u, 31u, 64u, 1000u, 4099u, 9000u})
    for (const int rarity : {1, 2, 5, 250}) {
      const auto symbols = uniform_codes(256, n, n + 1);
      ByteSet rare;
      std::vector<std::uint8_t> expected, stream = symbols;
      for (int s = 0; s < 256; s += rarity) rare.insert(static_cast<std::uint8_t>(s));
      for (std::uint8_t& symbol : stream)
        if (symbol % rarity == 0) {
          expected.push_back(symbol);
          symbol = 0;  // the escape
        }
      for_each_target([&](const char* set) {
        std::vector<std::uint8_t> values(expected.size());
        EXPECT_EQ(copy_escapes(symbols, rare, values.data()), expected.size()) << set;
        EXPECT_EQ(values, expected) << set;
        std::vector<std::uint8_t> back = stream;
        EXPECT_TRUE(put_escapes(back, 0, values)) << set;
        EXPECT_EQ(back, symbols) << set;
        values.push_back(9);
        back = stream;
        EXPECT_FALSE(put_escapes(back, 0, values)) << set << ": one value too many";
        if (expected.empty()) return;
        values.resize(expected.size() - 1);
        back = stream;
        EXPECT_FALSE(put_escapes(back, 0, values)) << set << ": one value too few";
      });
    }
}

// What the coder of the rest would give, and what travels beside it.
void expect_placed(const std::vector<std::uint8_t>& symbols, const ByteSet& rare) {
  std::vector<std::uint8_t> stream = symbols;
  std::size_t num_rare = 0;
  for (std::uint8_t& symbol : stream)
    if (rare.contains(symbol)) {
      symbol ^= 0x55;
      ++num_rare;
    }
  std::vector<std::uint8_t> first_values, first_gaps;
  for_each_target([&](const std::string& set) {
    std::vector<std::uint8_t> values(most_placed(symbols.size())), gaps(2 * values.size());
    const std::size_t count = copy_placed(symbols, rare, values.data(), gaps.data());
    ASSERT_GE(count, num_rare) << set;
    ASSERT_LE(count, num_rare + symbols.size() / kMostBetween) << set;
    values.resize(count);
    gaps.resize(2 * count);
    if (set == "scalar") first_values = values, first_gaps = gaps;
    EXPECT_EQ(values, first_values) << set;
    EXPECT_EQ(gaps, first_gaps) << set;
    std::vector<std::uint8_t> back = stream;
    EXPECT_TRUE(put_placed(back, values, gaps)) << set;
    EXPECT_EQ(back, symbols) << set;
    if (count == 0) return;
    // The symbols end before the last place.
    std::size_t last = count - 1;
    for (std::size_t i = 0; i < count; ++i) last += gaps[2 * i] + 256u * gaps[2 * i + 1];
    EXPECT_TRUE(rare.contains(symbols[last])) << set;
    EXPECT_TRUE(put_placed(std::span(back).first(last + 1), values, gaps)) << set;
    EXPECT_FALSE(put_placed(std::span(back).first(last), values, gaps)) << set;
  });
}

TEST(Escapes, TravelWithTheirPlaces) {
  for (const std::size_t n : {0u, 1u, 31u, 64u, 1000u, 4099u, 9000u})
    for (const int rarity : {1, 2, 5, 250}) {
      ByteSet rare;
      for (int s = 0; s < 256; s += rarity) rare.insert(static_cast<std::uint8_t>(s));
      expect_placed(uniform_codes(256, n, n + 1), rare);
    }
}

TEST(Escapes, PlacesFarApart) {
  ByteSet rare;
  rare.insert(7);
  for (const std::vector<std::size_t>& places : std::vector<std::vector<std::size_t>>{
           {65534}, {65535}, {65536}, {0, 65535, 131071, 196608}, {5, 199999}, {131072}}) {
    std::vector<std::uint8_t> symbols = uniform_codes(2, 200000, 3);
    for (const std::size_t place : places) symbols[place] = 7;
    expect_placed(symbols, rare);
  }
}

}  // namespace
}  // namespace slimgrad::kernels
