#include "kernels/coding/rans.h"

#include <gtest/gtest.h>

#include <memory>

#include "arrays/coding/symbols.h"
#include "kernels/coding/value_symbols.h"
#include "math/coding/frequencies.h"

namespace slimgrad::kernels {
namespace {

struct Coded {
  std::vector<std::uint8_t> bytes;
  RansFrequencies frequencies;
};

Coded encode(const std::vector<std::uint8_t>& symbols, const RansFrequencies& frequencies,
             bool scalar) {
  auto table = std::make_unique<RansEncodeTable>();
  build_encode_table(frequencies, *table);
  std::vector<std::uint8_t> scratch(rans_encode_bound(symbols.size()));
  const auto bytes =
      scalar ? rans_encode_scalar(symbols, *table, scratch) : rans_encode(symbols, *table, scratch);
  return {{bytes.begin(), bytes.end()}, frequencies};
}

std::vector<std::uint8_t> mixed_symbols(std::size_t n, std::uint64_t seed) {
  auto symbols = gennorm_codes(0.7, std::max<std::size_t>(n, 64), 0.0, seed);
  symbols.resize(n);
  return symbols;
}

RansFrequencies frequencies_for(const std::vector<std::uint8_t>& symbols) {
  Weights weights = to_weights(count_bytes(symbols));
  for (const int s : {0, 255}) ++weights[s];  // two symbols at least
  return fit_frequencies(weights).value();
}

void expect_round_trip(const std::vector<std::uint8_t>& symbols, const RansFrequencies& f) {
  ASSERT_TRUE(is_valid(f));
  const Coded reference = encode(symbols, f, true);
  auto table = std::make_unique<RansDecodeTable>();
  build_decode_table(f, *table);
  std::vector<std::uint8_t> back(symbols.size());
  EXPECT_EQ(rans_decode_scalar(reference.bytes, *table, back), DecodeStatus::kOk);
  EXPECT_EQ(back, symbols);
  for_each_target([&](const char* target) {
    EXPECT_EQ(encode(symbols, f, false).bytes, reference.bytes) << target;
    std::fill(back.begin(), back.end(), std::uint8_t{1});
    EXPECT_EQ(rans_decode(reference.bytes, *table, back), DecodeStatus::kOk) << target;
    EXPECT_EQ(back, symbols) << target;
  });
}

TEST(Rans, EveryTargetWritesAndReadsTheScalarBytes) {
  for (std::size_t n = 0; n <= 130; ++n) {
    const auto symbols = mixed_symbols(n, n);
    expect_round_trip(symbols, frequencies_for(symbols));
  }
  for (const std::size_t n : {1000u, 4097u, 65536u, 100003u}) {
    const auto symbols = mixed_symbols(n, n);
    expect_round_trip(symbols, frequencies_for(symbols));
  }
}

TEST(Rans, ExtremeFrequencies) {
  // One symbol with 4095 of 4096 and one with 1, in both orders, coding each of them.
  for (const int common : {0, 255}) {
    RansFrequencies f;
    f.frequency[common] = 4095;
    f.frequency[255 - common] = 1;
    std::vector<std::uint8_t> symbols(5000, static_cast<std::uint8_t>(common));
    expect_round_trip(symbols, f);
    for (std::size_t i = 0; i < symbols.size(); i += 7)
      symbols[i] = static_cast<std::uint8_t>(255 - common);
    expect_round_trip(symbols, f);
    std::fill(symbols.begin(), symbols.end(), static_cast<std::uint8_t>(255 - common));
    expect_round_trip(symbols, f);
  }
  for (const int alphabet : {2, 4, 16, 128, 256}) {
    const auto symbols = uniform_codes(alphabet, 10000);
    expect_round_trip(symbols, fit_frequencies(to_weights(count_bytes(symbols))).value());
  }
}

// The division by a reciprocal, where a quotient is about to change, for every frequency.
TEST(Rans, AnEntryIsTheStepOfTheDefinition) {
  auto table = std::make_unique<RansEncodeTable>();
  for (std::uint32_t f = 1; f < kRansTotal; ++f) {
    RansFrequencies frequencies;
    frequencies.frequency[0] = static_cast<std::uint16_t>(kRansTotal - f);
    frequencies.frequency[1] = static_cast<std::uint16_t>(f);
    build_encode_table(frequencies, *table);
    const RansEncodeEntry entry = table->entry[1];
    const std::uint32_t most = (f << 19) - 1;  // what is more is shortened first
    EXPECT_EQ(((kRansTotal - entry.others()) << RansEncodeEntry::kToLimit) - 1, most);
    const auto check = [&](std::uint32_t x) {
      if (x == 0 || x > most) return;
      const std::uint32_t expected = x / f * kRansTotal + x % f + kRansTotal - f;
      const auto quotient =
          static_cast<std::uint32_t>((std::uint64_t{x} * entry.reciprocal) >> 32 >> entry.shift());
      ASSERT_EQ(x + entry.bias() + quotient * entry.others(), expected) << f << ' ' << x;
    };
    for (std::uint32_t i = 0; i < 64; ++i)
      for (const std::uint32_t multiple :
           {i * f, (1u << 18) * f - i * f, most / f * f - i * 4099 * f})
        for (std::uint32_t d = 0; d < 3; ++d) check(multiple + d - 1);
    check(most);
  }
}

TEST(Rans, SymbolsWithoutAFrequencyComeBackAsAnother) {
  RansFrequencies f;
  f.frequency[7] = 4000;
  f.frequency[9] = 96;
  EXPECT_TRUE(is_valid(f));
  f.escape = 8;
  EXPECT_FALSE(is_valid(f));
  const auto symbols = uniform_codes(256, 5000);
  for (const int escape : {9, -1}) {  // the escape, or the commonest
    f.escape = escape;
    ASSERT_TRUE(is_valid(f));
    std::vector<std::uint8_t> expected(symbols.size());
    for (std::size_t i = 0; i < symbols.size(); ++i)
      expected[i] = symbols[i] == 7 || (escape < 0 && symbols[i] != 9) ? 7 : 9;
    const auto bytes = encode(symbols, f, true).bytes;
    EXPECT_EQ(bytes, encode(expected, f, true).bytes);
    auto table = std::make_unique<RansDecodeTable>();
    build_decode_table(f, *table);
    for_each_target([&](const char* target) {
      EXPECT_EQ(encode(symbols, f, false).bytes, bytes) << target;
      std::vector<std::uint8_t> back(symbols.size());
      EXPECT_EQ(rans_decode(bytes, *table, back), DecodeStatus::kOk) << target;
      EXPECT_EQ(back, expected) << target;
    });
  }
}

TEST(Rans, PairGivesTheSameAsTwo) {
  const auto symbols = mixed_symbols(30011, 5);
  const auto f = frequencies_for(symbols);
  auto table = std::make_unique<RansDecodeTable>();
  build_decode_table(f, *table);
  for (const std::size_t split : {0u, 1u, 32u, 9000u, 15000u, 30011u}) {
    const std::vector<std::uint8_t> a(symbols.begin(), symbols.begin() + split);
    const std::vector<std::uint8_t> b(symbols.begin() + split, symbols.end());
    const auto bytes_a = encode(a, f, true).bytes, bytes_b = encode(b, f, true).bytes;
    for_each_target([&](const char* target) {
      std::vector<std::uint8_t> back_a(a.size()), back_b(b.size());
      EXPECT_EQ(rans_decode_pair(bytes_a, back_a, bytes_b, back_b, *table), DecodeStatus::kOk);
      EXPECT_EQ(back_a, a) << target;
      EXPECT_EQ(back_b, b) << target;
    });
  }
}

TEST(Rans, DamageIsNoticedOrHarmless) {
  const auto symbols = mixed_symbols(600, 9);
  const auto f = frequencies_for(symbols);
  const auto bytes = encode(symbols, f, true).bytes;
  auto table = std::make_unique<RansDecodeTable>();
  build_decode_table(f, *table);
  for_each_target([&](const char* target) {
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      // An allocation of exactly this size, so that AddressSanitizer sees any read beyond it.
      const std::vector<std::uint8_t> cut(bytes.begin(), bytes.begin() + size);
      std::vector<std::uint8_t> back(symbols.size());
      EXPECT_NE(rans_decode(cut, *table, back), DecodeStatus::kOk) << target << size;
    }
    for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
      std::vector<std::uint8_t> flipped = bytes;
      flipped[bit / 8] ^= static_cast<std::uint8_t>(1u << bit % 8);
      std::vector<std::uint8_t> back(symbols.size());
      if (rans_decode(flipped, *table, back) == DecodeStatus::kOk) {
        EXPECT_NE(back, symbols);
      }
    }
    std::vector<std::uint8_t> longer = bytes;
    longer.push_back(0);
    longer.push_back(0);
    std::vector<std::uint8_t> back(symbols.size());
    EXPECT_EQ(rans_decode(longer, *table, back), DecodeStatus::kTrailingBytes);
  });
}

}  // namespace
}  // namespace slimgrad::kernels
