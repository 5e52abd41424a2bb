#include "formats/bit_packing.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace slimgrad {
namespace {

// The definition, bit by bit.
std::vector<std::uint8_t> pack_plainly(const std::vector<std::uint8_t>& codes, int bits) {
  std::vector<std::uint8_t> packed((codes.size() * static_cast<std::size_t>(bits) + 7) / 8);
  for (std::size_t i = 0; i < codes.size(); ++i)
    for (int b = 0; b < bits; ++b) {
      const std::size_t j = i * static_cast<std::size_t>(bits) + static_cast<std::size_t>(b);
      packed[j / 8] |= static_cast<std::uint8_t>((codes[i] >> b & 1) << (j % 8));
    }
  return packed;
}

TEST(BitPacking, FollowsTheDefinitionAndComesBack) {
  std::mt19937 engine(1);
  for (int bits = 2; bits <= 8; ++bits)
    for (std::size_t num_codes = 0; num_codes <= 67; ++num_codes) {
      std::vector<std::uint8_t> codes(num_codes);
      for (auto& code : codes) code = static_cast<std::uint8_t>(engine() & ((1u << bits) - 1));
      const std::size_t num_bytes = packed_bytes(num_codes, bits);
      // A guard byte on either end catches a write out of place.
      std::vector<std::uint8_t> packed(num_bytes + 2, 0xa5), back(num_codes + 2, 0xa5);
      with_bits(bits, [&]<int b>() {
        pack_codes<b>(codes.data(), num_codes, packed.data() + 1);
        unpack_codes<b>(packed.data() + 1, num_codes, back.data() + 1);
      });
      EXPECT_EQ(std::vector(packed.begin() + 1, packed.end() - 1), pack_plainly(codes, bits));
      EXPECT_EQ(std::vector(back.begin() + 1, back.end() - 1), codes);
      EXPECT_EQ(packed.front(), 0xa5);
      EXPECT_EQ(packed.back(), 0xa5);
      EXPECT_EQ(back.front(), 0xa5);
      EXPECT_EQ(back.back(), 0xa5);
    }
}

TEST(BitPacking, Sizes) {
  EXPECT_EQ(packed_bytes(0, 4), 0u);
  EXPECT_EQ(packed_bytes(2, 4), 1u);
  EXPECT_EQ(packed_bytes(3, 4), 2u);
  EXPECT_EQ(packed_bytes(4, 6), 3u);
  EXPECT_EQ(packed_bytes(8, 3), 3u);
  EXPECT_EQ(packed_bytes(8, 5), 5u);
  EXPECT_EQ(packed_bytes(8, 7), 7u);
  EXPECT_EQ(packed_bytes(9, 7), 8u);
}

}  // namespace
}  // namespace slimgrad
