#include "codecs/symbol_block.h"

#include <gtest/gtest.h>

#include <slimgrad/error.h>

#include "codecs/symbols.h"
#include "kernels/dispatch.h"

namespace slimgrad {
namespace {

using Bytes = std::vector<std::uint8_t>;

Bytes encode(const Bytes& symbols, EntropyCoder coder, const SharedTable* shared = nullptr) {
  BlockEncoder encoder(coder, shared);
  const auto block = encoder.encode(symbols);
  return {block.begin(), block.end()};
}

void expect_round_trip(const Bytes& symbols) {
  for (const EntropyCoder coder : {EntropyCoder::kRans, EntropyCoder::kHuffman}) {
    const Bytes block = encode(symbols, coder);
    EXPECT_LE(block.size(), symbols.size() + 1);
    Bytes back(symbols.size());
    EXPECT_EQ(BlockDecoder().decode(block, back), DecodeStatus::kOk);
    EXPECT_EQ(back, symbols);
  }
}

TEST(SymbolBlock, EveryAlphabetAndLength) {
  for (std::size_t n = 0; n <= 130; ++n)
    for (const int alphabet : {1, 2, 3, 17, 256}) expect_round_trip(uniform_codes(alphabet, n, n));
  for (int alphabet = 1; alphabet <= 256; ++alphabet)
    expect_round_trip(uniform_codes(alphabet, 3000 + 7 * static_cast<std::size_t>(alphabet)));
}

TEST(SymbolBlock, GradientCodesOfAllKinds) {
  for (const double shape : {0.3, 0.7, 1.0, 2.0})
    for (const double pruned : {0.0, 0.6, 0.85, 0.99, 0.99999})
      for (const std::size_t n : {5000u, 70001u, 262144u})
        expect_round_trip(gennorm_codes(shape, n, pruned));
}

TEST(SymbolBlock, SizesNearTheEntropy) {
  for (const std::size_t n : {std::size_t{128} * 1024, kDefaultBlockSymbols})
    for (const double shape : {0.4, 0.7, 1.0, 2.0}) {
      const Bytes symbols = gennorm_codes(shape, n);
      const double entropy = entropy_bits(to_weights(count_bytes(symbols))) / 8;
      EXPECT_LT(encode(symbols, EntropyCoder::kRans).size(), 1.005 * entropy) << shape << ' ' << n;
      EXPECT_LT(encode(symbols, EntropyCoder::kHuffman).size(), 1.05 * entropy) << shape;
    }
  // Zeros cost far less than a bit each, as the entropy says they can.
  const Bytes pruned = gennorm_codes(0.6, kDefaultBlockSymbols, 0.85);
  const double entropy = entropy_bits(to_weights(count_bytes(pruned))) / 8;
  EXPECT_LT(encode(pruned, EntropyCoder::kRans).size(), 1.02 * entropy);
}

TEST(SymbolBlock, SharedTable) {
  const Bytes symbols = gennorm_codes(0.7, 50000);
  const SharedTable shared = make_shared_table(to_weights(count_bytes(symbols)));
  for (const EntropyCoder coder : {EntropyCoder::kRans, EntropyCoder::kHuffman}) {
    const Bytes block = encode(symbols, coder, &shared);
    EXPECT_LT(block.size(), encode(symbols, coder).size());
    Bytes back(symbols.size());
    EXPECT_EQ(BlockDecoder(&shared).decode(block, back), DecodeStatus::kOk);
    EXPECT_EQ(back, symbols);
    EXPECT_EQ(BlockDecoder().decode(block, back), DecodeStatus::kNoSharedTable);
    // Symbols that the table does not know bring their own.
    const Bytes others = uniform_codes(256, 3000);
    Bytes others_back(others.size());
    EXPECT_EQ(BlockDecoder(&shared).decode(encode(others, coder, &shared), others_back),
              DecodeStatus::kOk);
    EXPECT_EQ(others_back, others);
  }
  EXPECT_THROW(make_shared_table({}), InvalidArgument);
}

TEST(SymbolBlock, EveryTruncationAndBitFlip) {
  for (const EntropyCoder coder : {EntropyCoder::kRans, EntropyCoder::kHuffman})
    for (const double pruned : {0.0, 0.85}) {
      const Bytes symbols = gennorm_codes(0.8, 2500, pruned);
      const Bytes block = encode(symbols, coder);
      ASSERT_LT(block.size(), symbols.size());
      BlockDecoder decoder;
      for (std::size_t size = 0; size < block.size(); ++size) {
        const Bytes cut(block.begin(), block.begin() + size);
        Bytes back(symbols.size());
        EXPECT_NE(decoder.decode(cut, back), DecodeStatus::kOk) << size;
      }
      for (std::size_t bit = 0; bit < 8 * block.size(); ++bit) {
        Bytes flipped = block;
        flipped[bit / 8] ^= static_cast<std::uint8_t>(1u << bit % 8);
        Bytes back(symbols.size());
        // Not every flip can be seen without a checksum, but none may go unnoticed and be right.
        if (decoder.decode(flipped, back) == DecodeStatus::kOk) {
          EXPECT_NE(back, symbols) << bit;
        }
      }
    }
}

// Two streams and escapes in both: a value more or less than there are places is noticed, and a
// changed one arrives as it is.
TEST(SymbolBlock, EscapesOfTwoStreams) {
  const Bytes symbols = gennorm_codes(1.0, kDefaultBlockSymbols);
  const Bytes block = encode(symbols, EntropyCoder::kRans);
  ASSERT_EQ(block[0], 2 + 32);
  BitReader reader{std::span<const std::uint8_t>(block).subspan(1)};
  RansFrequencies frequencies;
  ASSERT_TRUE(read_frequencies(reader, frequencies));
  ASSERT_TRUE(frequencies.has_escape());
  const std::size_t at = 1 + reader.num_bytes();
  const unsigned count = block[at] + 256u * block[at + 1];
  ASSERT_GT(count, 10u);
  Bytes back(symbols.size());
  for (const std::string& set : kernels::kernel_sets()) {
    kernels::select_kernel_set(set);
    EXPECT_EQ(BlockDecoder().decode(block, back), DecodeStatus::kOk) << set;
    EXPECT_EQ(back, symbols) << set;
    for (const int change : {-1, 1}) {
      Bytes other = block;
      other[at] = static_cast<std::uint8_t>(count + static_cast<unsigned>(change));
      other[at + 1] = static_cast<std::uint8_t>((count + static_cast<unsigned>(change)) >> 8);
      if (change > 0)
        other.insert(other.begin() + static_cast<std::ptrdiff_t>(at) + 4, 0);
      else
        other.erase(other.begin() + static_cast<std::ptrdiff_t>(at) + 4);
      EXPECT_EQ(BlockDecoder().decode(other, back), DecodeStatus::kBadFinalState) << set << change;
    }
    for (const std::size_t i : {std::size_t{0}, std::size_t{count} - 1}) {
      Bytes other = block;
      other[at + 4 + i] ^= 1;
      EXPECT_EQ(BlockDecoder().decode(other, back), DecodeStatus::kOk) << set;
      std::size_t differences = 0;
      for (std::size_t k = 0; k < symbols.size(); ++k) differences += back[k] != symbols[k];
      EXPECT_EQ(differences, 1u) << set;
    }
  }
  kernels::select_kernel_set("best");
}

TEST(SymbolBlock, RandomBytesNeverCrash) {
  std::mt19937_64 random(8);
  BlockDecoder decoder;
  for (int trial = 0; trial < 20000; ++trial) {
    Bytes bytes(random() % 300);
    for (auto& b : bytes) b = static_cast<std::uint8_t>(random());
    if (!bytes.empty()) bytes[0] = static_cast<std::uint8_t>(random() % 7 + random() % 4 * 16);
    Bytes symbols(random() % 2000);
    decoder.decode(bytes, symbols);
  }
}

TEST(SymbolBlock, TheSameBytesOnEveryTarget) {
  const Bytes symbols = gennorm_codes(0.7, 70001), pruned = gennorm_codes(0.7, 70001, 0.85);
  for (const EntropyCoder coder : {EntropyCoder::kRans, EntropyCoder::kHuffman}) {
    const Bytes one = encode(symbols, coder), two = encode(pruned, coder);
    for_each_target([&](const char* target) {
      EXPECT_EQ(encode(symbols, coder), one) << target;
      EXPECT_EQ(encode(pruned, coder), two) << target;
    });
  }
}

}  // namespace
}  // namespace slimgrad
