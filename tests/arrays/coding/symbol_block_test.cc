#include "arrays/coding/symbol_block.h"

#include <gtest/gtest.h>

#include <slimgrad/error.h>

#include "arrays/coding/symbols.h"
#include "kernels/coding/escapes.h"
#include "kernels/coding/rans.h"
#include "kernels/coding/value_symbols.h"

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

TEST(SymbolBlock, PackedSymbolsTakeAsManyBitsAsTheyHave) {
  for (int bits = 2; bits <= 8; ++bits)
    for (const std::size_t n : {0u, 1u, 2u, 7u, 8u, 9u, 1000u, 70001u}) {
      std::mt19937_64 random(n);
      Bytes symbols(n);
      for (std::uint8_t& symbol : symbols)
        symbol = static_cast<std::uint8_t>(random() & ((1u << bits) - 1));
      BlockEncoder encoder(EntropyCoder::kNone, nullptr, bits);
      const auto span = encoder.encode(symbols);
      const Bytes block(span.begin(), span.end());
      EXPECT_LE(block.size(), n + 1);
      if (n >= 1000) {
        EXPECT_LE(block.size(), n * static_cast<std::size_t>(bits) / 8 + 3);
      }
      Bytes back(n);
      EXPECT_EQ(BlockDecoder().decode(block, back), DecodeStatus::kOk);
      EXPECT_EQ(back, symbols);
    }
}

TEST(SymbolBlock, PackedBlocksThatNoneWrites) {
  const Bytes good = {5, 3, 0x88, 0x06, 0x00};  // 0, 1, 2, 3, 0, 0 and 6 bits of padding
  Bytes symbols(6);
  ASSERT_EQ(BlockDecoder().decode(good, symbols), DecodeStatus::kOk);
  EXPECT_EQ(symbols, (Bytes{0, 1, 2, 3, 0, 0}));
  const auto status = [&](const Bytes& bytes) { return BlockDecoder().decode(bytes, symbols); };
  EXPECT_EQ(status({5}), DecodeStatus::kTruncated);
  EXPECT_EQ(status({5, 3, 0x88, 0x06}), DecodeStatus::kTruncated);
  EXPECT_EQ(status({5, 3, 0x88, 0x06, 0x00, 0x00}), DecodeStatus::kTrailingBytes);
  EXPECT_EQ(status({5, 3, 0x88, 0x06, 0x04}), DecodeStatus::kBadFinalState);  // padding
  EXPECT_EQ(status({5, 1, 0x88}), DecodeStatus::kBadTable);
  EXPECT_EQ(status({5, 8, 1, 2, 3, 4, 5, 6}), DecodeStatus::kBadTable);
  EXPECT_EQ(status({5 + 16, 3, 0x88, 0x06, 0x00}), DecodeStatus::kBadMethod);
}

TEST(SymbolBlock, SizesNearTheEntropy) {
  for (const std::size_t n : {std::size_t{128} * 1024, kDefaultBlockSymbols})
    for (const double shape : {0.4, 0.7, 1.0, 2.0}) {
      const Bytes symbols = gennorm_codes(shape, n);
      const double entropy = entropy_bits(to_weights(kernels::count_bytes(symbols))) / 8;
      EXPECT_LT(encode(symbols, EntropyCoder::kRans).size(), 1.005 * entropy) << shape << ' ' << n;
      EXPECT_LT(encode(symbols, EntropyCoder::kHuffman).size(), 1.05 * entropy) << shape;
    }
  // Zeros cost far less than a bit each, as the entropy says they can.
  const Bytes pruned = gennorm_codes(0.6, kDefaultBlockSymbols, 0.85);
  const double entropy = entropy_bits(to_weights(kernels::count_bytes(pruned))) / 8;
  EXPECT_LT(encode(pruned, EntropyCoder::kRans).size(), 1.02 * entropy);
}

TEST(SymbolBlock, SharedTable) {
  const Bytes symbols = gennorm_codes(0.7, 50000);
  const SharedTable shared = make_shared_table(to_weights(kernels::count_bytes(symbols)));
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

// In a block so large that only a sample is counted, one symbol that the table does not know.
TEST(SymbolBlock, SharedTableAndOneSymbolThatNoSampleSees) {
  Bytes symbols = uniform_codes(4, kDefaultBlockSymbols);
  const SharedTable shared = make_shared_table(to_weights(kernels::count_bytes(symbols)));
  ASSERT_FALSE(shared.frequencies.has_escape());
  for (const std::size_t place : {300u, 100000u, 262143u}) {
    symbols[place] = 77;
    Bytes back(symbols.size());
    EXPECT_EQ(BlockDecoder(&shared).decode(encode(symbols, EntropyCoder::kRans, &shared), back),
              DecodeStatus::kOk);
    EXPECT_EQ(back, symbols) << place;
  }
}

// Symbols between the runs of the sample: a few are placed, also over far distances; if they are
// many, all are counted.
TEST(SymbolBlock, SymbolsThatNoSampleSees) {
  const Bytes common = uniform_codes(64, kDefaultBlockSymbols);
  const auto with_others = [&](std::size_t first, std::size_t stride) {
    Bytes symbols = common;
    std::uint8_t other = 0;
    for (std::size_t i = first; i < symbols.size(); i += stride)
      if (i % 1024 >= 256) symbols[i] = static_cast<std::uint8_t>(4 * other++ + 1);
    return symbols;
  };
  const Bytes far = with_others(5 + 300, 1000 * 199), some = with_others(700, 4096),
              many = with_others(700, 128);
  expect_round_trip(far);
  expect_round_trip(some);
  expect_round_trip(many);
  EXPECT_EQ(encode(far, EntropyCoder::kRans)[0], 2 + 32 + 64);
  EXPECT_EQ(encode(some, EntropyCoder::kRans)[0], 2 + 32 + 64);
  for (const Bytes& symbols : {far, some, many}) {
    const double entropy = entropy_bits(to_weights(kernels::count_bytes(symbols))) / 8;
    EXPECT_LT(encode(symbols, EntropyCoder::kRans).size(), 1.005 * entropy);
  }
}

void expect_damage_is_noticed(const Bytes& symbols, const Bytes& block) {
  BlockDecoder decoder;
  Bytes back(symbols.size());
  EXPECT_EQ(decoder.decode(block, back), DecodeStatus::kOk);
  EXPECT_EQ(back, symbols);
  for (std::size_t size = 0; size < block.size(); ++size) {
    const Bytes cut(block.begin(), block.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_NE(decoder.decode(cut, back), DecodeStatus::kOk) << size;
  }
  for (std::size_t bit = 0; bit < 8 * block.size(); ++bit) {
    Bytes flipped = block;
    flipped[bit / 8] ^= static_cast<std::uint8_t>(1u << bit % 8);
    // Not every flip can be seen without a checksum, but none may go unnoticed and be right.
    if (decoder.decode(flipped, back) == DecodeStatus::kOk) {
      EXPECT_NE(back, symbols) << bit;
    }
  }
}

TEST(SymbolBlock, EveryTruncationAndBitFlip) {
  for (const EntropyCoder coder : {EntropyCoder::kRans, EntropyCoder::kHuffman})
    for (const double pruned : {0.0, 0.85}) {
      const Bytes symbols = gennorm_codes(0.8, 2500, pruned);
      const Bytes block = encode(symbols, coder);
      ASSERT_LT(block.size(), symbols.size());
      expect_damage_is_noticed(symbols, block);
    }
}

// Smaller than the encoder would write one.
TEST(SymbolBlock, EveryTruncationAndBitFlipOfPlacedSymbols) {
  const Bytes symbols = gennorm_codes(0.8, 2500);
  Weights weights = to_weights(kernels::count_bytes(symbols));
  kernels::ByteSet rare;
  for (int s = 0; s < 256; ++s)
    if (weights[s] < 4) {
      weights[s] = 0;
      rare.insert(static_cast<std::uint8_t>(s));
    }
  const RansFrequencies frequencies = fit_frequencies(weights).value();
  Bytes values(kernels::most_placed(symbols.size())), gaps(2 * values.size());
  const std::size_t count = kernels::copy_placed(symbols, rare, values.data(), gaps.data());
  ASSERT_GT(count, 10u);
  auto table = std::make_unique<kernels::RansEncodeTable>();
  kernels::build_encode_table(frequencies, *table);
  Bytes scratch(kernels::rans_encode_bound(symbols.size())), block(300);
  block[0] = 2 + 64;
  BitWriter writer{std::span(block).subspan(1)};
  write_frequencies(frequencies, writer);
  block.resize(1 + writer.num_bytes());
  for (int i = 0; i < 4; ++i) block.push_back(static_cast<std::uint8_t>(count >> 8 * i));
  block.insert(block.end(), values.begin(), values.begin() + static_cast<std::ptrdiff_t>(count));
  block.insert(block.end(), gaps.begin(), gaps.begin() + static_cast<std::ptrdiff_t>(2 * count));
  const auto stream = kernels::rans_encode(symbols, *table, scratch);
  block.insert(block.end(), stream.begin(), stream.end());
  expect_damage_is_noticed(symbols, block);
}

// A block of two streams with rare symbols, and where in it their number is.
struct BlockWithRareSymbols {
  Bytes symbols, block;
  RansFrequencies frequencies;
  std::size_t at = 0;
  unsigned count = 0;

  explicit BlockWithRareSymbols(double shape)
      : symbols(gennorm_codes(shape, kDefaultBlockSymbols)),
        block(encode(symbols, EntropyCoder::kRans)) {
    BitReader reader{std::span<const std::uint8_t>(block).subspan(1)};
    EXPECT_TRUE(read_frequencies(reader, frequencies));
    at = 1 + reader.num_bytes();
    count = block[at] + 256u * block[at + 1];
    EXPECT_GT(count, 10u);
    EXPECT_LT(count, 5000u);
  }
  std::size_t num_differences(const Bytes& back) const {
    std::size_t num = 0;
    for (std::size_t i = 0; i < symbols.size(); ++i) num += back[i] != symbols[i];
    return num;
  }
};

// A value more or less than there are places is noticed, and a changed one arrives as it is.
TEST(SymbolBlock, EscapesOfTwoStreams) {
  const BlockWithRareSymbols sample(0.45);
  ASSERT_EQ(sample.block[0], 2 + 32);
  ASSERT_TRUE(sample.frequencies.has_escape());
  const auto values = static_cast<std::ptrdiff_t>(sample.at + 4);
  Bytes back(sample.symbols.size());
  for_each_target([&](const char* set) {
    EXPECT_EQ(BlockDecoder().decode(sample.block, back), DecodeStatus::kOk) << set;
    EXPECT_EQ(back, sample.symbols) << set;
    for (const unsigned count : {sample.count - 1, sample.count + 1}) {
      Bytes other = sample.block;
      other[sample.at] = static_cast<std::uint8_t>(count);
      other[sample.at + 1] = static_cast<std::uint8_t>(count >> 8);
      if (count > sample.count)
        other.insert(other.begin() + values, 0);
      else
        other.erase(other.begin() + values);
      EXPECT_EQ(BlockDecoder().decode(other, back), DecodeStatus::kBadFinalState) << set << count;
    }
    for (const unsigned i : {0u, sample.count - 1}) {
      Bytes other = sample.block;
      other[sample.at + 4 + i] ^= 1;
      EXPECT_EQ(BlockDecoder().decode(other, back), DecodeStatus::kOk) << set;
      EXPECT_EQ(sample.num_differences(back), 1u) << set;
    }
  });
}

TEST(SymbolBlock, PlacedSymbolsOfTwoStreams) {
  const BlockWithRareSymbols sample(1.0);
  ASSERT_EQ(sample.block[0], 2 + 32 + 64);
  ASSERT_FALSE(sample.frequencies.has_escape());
  Bytes back(sample.symbols.size());
  for_each_target([&](const char* set) {
    EXPECT_EQ(encode(sample.symbols, EntropyCoder::kRans), sample.block) << set;
    EXPECT_EQ(BlockDecoder().decode(sample.block, back), DecodeStatus::kOk) << set;
    EXPECT_EQ(back, sample.symbols) << set;
  });
  Bytes other = sample.block;
  other[sample.at + 4] ^= 1;  // the first value
  EXPECT_EQ(BlockDecoder().decode(other, back), DecodeStatus::kOk);
  EXPECT_EQ(sample.num_differences(back), 1u);
  other = sample.block;  // all gaps as large as can be: the places are behind the end
  std::fill_n(other.begin() + static_cast<std::ptrdiff_t>(sample.at + 4 + sample.count),
              2 * sample.count, std::uint8_t{0xff});
  EXPECT_EQ(BlockDecoder().decode(other, back), DecodeStatus::kBadFinalState);
  other = sample.block;  // more of them than there are bytes
  other[sample.at + 3] = 0xff;
  EXPECT_EQ(BlockDecoder().decode(other, back), DecodeStatus::kTruncated);
  // Places go with a table of their own that has no escape, and with rANS.
  const SharedTable shared = make_shared_table(to_weights(kernels::count_bytes(sample.symbols)));
  other = sample.block;
  other[0] += 16;
  EXPECT_EQ(BlockDecoder(&shared).decode(other, back), DecodeStatus::kBadMethod);
  for (const int method : {0, 1, 3, 4}) {
    other[0] = static_cast<std::uint8_t>(method + 64);
    EXPECT_EQ(BlockDecoder().decode(other, back), DecodeStatus::kBadMethod) << method;
  }
  other = BlockWithRareSymbols(0.45).block;
  other[0] += 64;
  EXPECT_EQ(BlockDecoder().decode(other, back), DecodeStatus::kBadTable);
}

TEST(SymbolBlock, RandomBytesNeverCrash) {
  std::mt19937_64 random(8);
  BlockDecoder decoder;
  for (int trial = 0; trial < 20000; ++trial) {
    Bytes bytes(random() % 300);
    for (auto& b : bytes) b = static_cast<std::uint8_t>(random());
    if (!bytes.empty()) bytes[0] = static_cast<std::uint8_t>(random() % 7 + random() % 8 * 16);
    Bytes symbols(random() % 2000);
    decoder.decode(bytes, symbols);
  }
}

TEST(SymbolBlock, TheSameBytesByEveryKernelSet) {
  const Bytes symbols = gennorm_codes(0.7, 70001), pruned = gennorm_codes(0.7, 70001, 0.85);
  for (const EntropyCoder coder : {EntropyCoder::kRans, EntropyCoder::kHuffman}) {
    const Bytes one = encode(symbols, coder), two = encode(pruned, coder);
    for_each_target([&](const char* set) {
      EXPECT_EQ(encode(symbols, coder), one) << set;
      EXPECT_EQ(encode(pruned, coder), two) << set;
      Bytes back(symbols.size());
      EXPECT_EQ(BlockDecoder().decode(one, back), DecodeStatus::kOk) << set;
      EXPECT_EQ(back, symbols) << set;
      EXPECT_EQ(BlockDecoder().decode(two, back), DecodeStatus::kOk) << set;
      EXPECT_EQ(back, pruned) << set;
    });
  }
}

}  // namespace
}  // namespace slimgrad
