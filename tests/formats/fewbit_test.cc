#include "formats/fewbit.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <vector>

namespace slimgrad::fewbit {
namespace {

// Every bit of a block belongs to exactly one code: setting one bit changes one code, in one bit,
// and all codes and all their bits are reached.
TEST(FewbitLayout, EveryBitOfABlockIsOneBitOfOneCode) {
  for (int bits = 1; bits <= kMaxBits; ++bits) {
    std::set<std::pair<std::size_t, std::uint32_t>> reached;
    for (std::size_t bit = 0; bit < 8 * block_bytes(bits); ++bit) {
      std::vector<std::uint32_t> block(block_words(bits));
      block[bit / 32] = 1u << bit % 32;
      int num_changed = 0;
      for (std::size_t e = 0; e < kBlockValues; ++e) {
        const std::uint32_t code = code_at(block.data(), e / kNumColumns, e % kNumColumns, bits);
        if (code == 0) continue;
        ++num_changed;
        EXPECT_EQ(code & (code - 1), 0u);
        EXPECT_LT(code, 1u << bits);
        reached.emplace(e, code);
      }
      EXPECT_EQ(num_changed, 1);
    }
    EXPECT_EQ(reached.size(), kBlockValues * static_cast<std::size_t>(bits));
  }
}

TEST(FewbitLayout, SizesOfWholeAndStartedBlocks) {
  for (int bits = 1; bits <= kMaxBits; ++bits) {
    EXPECT_EQ(packed_bytes(0, bits), 0u);
    EXPECT_EQ(packed_bytes(1, bits), block_bytes(bits));
    EXPECT_EQ(packed_bytes(512, bits), block_bytes(bits));
    EXPECT_EQ(packed_bytes(513, bits), 2 * block_bytes(bits));
    // Whole blocks waste nothing.
    EXPECT_EQ(packed_bytes(std::size_t{1} << 24, bits) * 8,
              (std::size_t{1} << 24) * static_cast<std::size_t>(bits));
  }
}

// The drawing's own example of three bits: rows 30 and 31 in the tops of the three words.
TEST(FewbitLayout, ThreeBitsKeepTheLastRowsOnTop) {
  std::vector<std::uint32_t> block(block_words(3));
  block[0 * kNumColumns + 5] = 1u << 30;  // bit 0 of row 30
  block[1 * kNumColumns + 5] = 2u << 30;  // bit 0 of row 31
  block[2 * kNumColumns + 5] = 2u << 30;  // bit 2 of row 31
  EXPECT_EQ(code_at(block.data(), 30, 5, 3), 1u);
  EXPECT_EQ(code_at(block.data(), 31, 5, 3), 5u);
  EXPECT_EQ(code_at(block.data(), 30, 4, 3), 0u);
}

}  // namespace
}  // namespace slimgrad::fewbit
