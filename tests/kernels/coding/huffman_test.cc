#include "kernels/coding/huffman.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>

#include "arrays/coding/symbols.h"
#include "kernels/coding/value_symbols.h"
#include "math/coding/frequencies.h"

namespace slimgrad::kernels {
namespace {

HuffmanLengths lengths_for(const std::vector<std::uint8_t>& symbols) {
  Weights weights = to_weights(count_bytes(symbols));
  ++weights[0];
  ++weights[255];
  return huffman_lengths(weights);
}

std::vector<std::uint8_t> encode(const std::vector<std::uint8_t>& symbols,
                                 const HuffmanLengths& lengths) {
  auto table = std::make_unique<HuffmanEncodeTable>();
  build_encode_table(lengths, *table);
  std::vector<std::uint8_t> out(huffman_encode_bound(symbols.size()));
  out.resize(huffman_encode(symbols, *table, out));
  return out;
}

// The format read bit by bit from its description, without the kernel's tables.
std::vector<std::uint8_t> decode_plainly(const std::vector<std::uint8_t>& bytes,
                                         const HuffmanLengths& lengths, std::size_t n) {
  std::vector<std::pair<int, int>> words;  // (length, symbol) in canonical order
  for (int s = 0; s < 256; ++s)
    if (lengths[s] > 0) words.push_back({lengths[s], s});
  std::sort(words.begin(), words.end());
  std::vector<std::uint8_t> symbols(n);
  std::size_t begin = kHuffmanSizeBytes;
  for (std::size_t stream = 0; stream < 8; ++stream) {
    std::size_t bit = 8 * begin;
    for (std::size_t i = stream; i < n; i += 8) {
      unsigned code = 0, first = 0;
      int length = 0;
      std::size_t word = 0;
      bool found = false;
      while (!found) {
        code = code << 1 | (bytes.at(bit / 8) >> bit % 8 & 1u);
        ++bit, ++length, first <<= 1;
        for (; word < words.size() && words[word].first == length; ++word, ++first)
          if (first == code) {
            symbols[i] = static_cast<std::uint8_t>(words[word].second);
            found = true;
            break;
          }
      }
    }
    if (stream < 7) {
      std::uint32_t size;
      std::memcpy(&size, bytes.data() + 4 * stream, 4);
      begin += size;
    }
  }
  return symbols;
}

void expect_round_trip(const std::vector<std::uint8_t>& symbols, const HuffmanLengths& lengths) {
  ASSERT_TRUE(is_valid(lengths));
  const auto reference = encode(symbols, lengths);
  EXPECT_EQ(decode_plainly(reference, lengths, symbols.size()), symbols);
  auto table = std::make_unique<HuffmanDecodeTable>();
  build_decode_table(lengths, *table);
  for_each_target([&](const char* target) {
    EXPECT_EQ(encode(symbols, lengths), reference) << target;
    std::vector<std::uint8_t> back(symbols.size());
    EXPECT_EQ(huffman_decode(reference, *table, back), DecodeStatus::kOk) << target;
    EXPECT_EQ(back, symbols) << target;
  });
}

TEST(Huffman, RoundTripOfAllShortLengths) {
  for (std::size_t n = 0; n <= 130; ++n) {
    auto symbols = gennorm_codes(0.7, 200, 0.0, n);
    symbols.resize(n);
    expect_round_trip(symbols, lengths_for(symbols));
  }
}

TEST(Huffman, RoundTripOfAlphabetsAndLongData) {
  for (const int alphabet : {2, 4, 64, 256}) {
    const auto symbols = uniform_codes(alphabet, 20001);
    expect_round_trip(symbols, lengths_for(symbols));
  }
  for (const double shape : {0.3, 1.0, 2.0}) {
    const auto symbols = gennorm_codes(shape, 50007);
    expect_round_trip(symbols, lengths_for(symbols));
  }
  // Only the longest words, and only the shortest.
  HuffmanLengths lengths = {};
  for (int s = 0; s < 10; ++s) lengths[s] = static_cast<std::uint8_t>(s + 1);
  lengths[10] = lengths[11] = 11;
  lengths[9] = 10;
  ASSERT_TRUE(is_valid(lengths));
  expect_round_trip(std::vector<std::uint8_t>(5000, 11), lengths);
  expect_round_trip(std::vector<std::uint8_t>(5000, 0), lengths);
}

TEST(Huffman, DamageIsNoticedOrHarmless) {
  const auto symbols = gennorm_codes(0.7, 700);
  const auto lengths = lengths_for(symbols);
  const auto bytes = encode(symbols, lengths);
  auto table = std::make_unique<HuffmanDecodeTable>();
  build_decode_table(lengths, *table);
  for_each_target([&](const char* target) {
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      const std::vector<std::uint8_t> cut(bytes.begin(), bytes.begin() + size);
      std::vector<std::uint8_t> back(symbols.size());
      EXPECT_NE(huffman_decode(cut, *table, back), DecodeStatus::kOk) << target << size;
    }
    for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
      std::vector<std::uint8_t> flipped = bytes;
      flipped[bit / 8] ^= static_cast<std::uint8_t>(1u << bit % 8);
      std::vector<std::uint8_t> back(symbols.size());
      if (huffman_decode(flipped, *table, back) == DecodeStatus::kOk) {
        EXPECT_NE(back, symbols);
      }
    }
  });
}

TEST(Huffman, IncompleteAndOverfullCodesAreRefused) {
  HuffmanLengths lengths = {};
  EXPECT_FALSE(is_valid(lengths));
  lengths[3] = 1;
  EXPECT_FALSE(is_valid(lengths));
  lengths[4] = 1;
  EXPECT_TRUE(is_valid(lengths));
  lengths[5] = 1;
  EXPECT_FALSE(is_valid(lengths));
  lengths[5] = 12;
  EXPECT_FALSE(is_valid(lengths));
}

}  // namespace
}  // namespace slimgrad::kernels
