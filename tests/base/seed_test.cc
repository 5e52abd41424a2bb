#include <slimgrad/seed.h>

#include <bit>
#include <set>

#include <gtest/gtest.h>

namespace slimgrad {
namespace {

TEST(Seed, IsDerivedPartByPart) {
  constexpr std::uint64_t kSeed = derive_seed(7, {"encoder.0", 3, 11});
  EXPECT_EQ(kSeed, derive_seed(derive_seed(7, {"encoder.0"}), {3, 11}));
  EXPECT_EQ(derive_seed(7, {}), 7u);
  // From SplitMix64's and FNV-1a's definitions, in Python's integers.
  EXPECT_EQ(kSeed, 0x868ddbdf86b8982au);
  EXPECT_EQ(derive_seed(0, {-1}), 0x5dc20aa7b2a27137u);
}

// A changed bit of the seed or of a part changes each bit of the result with probability 1/2: 32 of
// 64 bits, with a standard error of 4 / sqrt(64) = 0.5 over the 64 bits that can change.
TEST(Seed, ChangesEveryBit) {
  double of_seed = 0, of_part = 0;
  for (int bit = 0; bit < 64; ++bit) {
    const std::uint64_t flipped = std::uint64_t{1} << bit;
    const std::uint64_t plain = derive_seed(5, {9});
    of_seed += std::popcount(plain ^ derive_seed(5 ^ flipped, {9}));
    of_part += std::popcount(plain ^ derive_seed(5, {9 ^ flipped}));
  }
  EXPECT_NEAR(of_seed / 64, 32, 2.5);
  EXPECT_NEAR(of_part / 64, 32, 2.5);
}

// Small numbers in any place, which is what ranks, steps and layers are, and where sums collide.
TEST(Seed, DiffersForAllSmallParts) {
  std::set<std::uint64_t> seeds;
  std::size_t count = 0;
  for (std::uint64_t seed = 0; seed < 8; ++seed)
    for (std::uint64_t a = 0; a < 32; ++a) {
      seeds.insert(derive_seed(seed, {a})), ++count;
      for (std::uint64_t b = 0; b < 32; ++b) {
        seeds.insert(derive_seed(seed, {a, b})), ++count;
        for (std::uint64_t c = 0; c < 8; ++c) seeds.insert(derive_seed(seed, {a, b, c})), ++count;
      }
    }
  EXPECT_EQ(seeds.size(), count);
}

}  // namespace
}  // namespace slimgrad
