#include "kernels/coding/zero_mask.h"

#include <gtest/gtest.h>

#include "arrays/coding/symbols.h"
#include "kernels/coding/value_symbols.h"

namespace slimgrad::kernels {
namespace {

TEST(ZeroMask, SplitsAndMergesEveryLength) {
  for (std::size_t n = 0; n <= 130; ++n)
    for (const double pruned : {0.0, 0.5, 0.9}) {
      auto symbols = gennorm_codes(0.6, 200, pruned, n);
      symbols.resize(n);
      for_each_target([&](const char* target) {
        std::vector<std::uint8_t> masks(num_masks(n)), others(n + kZeroMaskSlack);
        const std::size_t count = split_zeros(symbols, 128, masks, others);
        std::vector<std::uint8_t> expected;
        for (std::size_t i = 0; i < n; ++i) {
          EXPECT_EQ(masks[i / 8] >> i % 8 & 1, symbols[i] != 128) << target;
          if (symbols[i] != 128) expected.push_back(static_cast<std::uint8_t>(symbols[i] - 128));
        }
        ASSERT_EQ(count, expected.size()) << target;
        EXPECT_TRUE(std::equal(expected.begin(), expected.end(), others.begin())) << target;
        EXPECT_EQ(count_others(masks, n), count);
        // Exactly the room that is asked for, for AddressSanitizer's sake.
        std::vector<std::uint8_t> short_others(others.begin(),
                                               others.begin() + count + kZeroMaskSlack);
        std::vector<std::uint8_t> back(n);
        merge_zeros(masks, short_others, 128, back);
        EXPECT_EQ(back, symbols) << target;
      });
    }
}

TEST(ZeroMask, BitsAfterTheLastPositionAreNoticed) {
  const std::vector<std::uint8_t> masks = {0xff, 0x0f};
  EXPECT_EQ(count_others(masks, 12), 12u);
  EXPECT_EQ(count_others(masks, 11), 12u);  // more than there are positions
}

TEST(ByteCounts, AgreesWithCountingOneByOne) {
  for (std::size_t n : {0u, 1u, 15u, 16u, 17u, 1000u}) {
    const auto symbols = uniform_codes(256, n);
    ByteCounts expected = {};
    for (const std::uint8_t s : symbols) ++expected[s];
    EXPECT_EQ(count_bytes(symbols), expected);
  }
}

}  // namespace
}  // namespace slimgrad::kernels
