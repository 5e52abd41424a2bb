#include "base/rng.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace slimgrad {
namespace {

// The known answers of the Random123 distribution (kat_vectors, philox4x32 10).
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, 0, 0),
            (PhiloxWords{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({~0u, ~0u, ~0u, ~0u}, ~0u, ~0u),
            (PhiloxWords{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0xa4093822, 0x299f31d0),
            (PhiloxWords{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(RandomStream, CounterAndKeyAreLaidOutAsWritten) {
  const RandomStream random(0x299f31d0'a4093822, Stream::kPrune);
  EXPECT_EQ(random.block(0x85a308d3'243f6a88, 0x03707344'13198a2e),
            (PhiloxWords{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// Every one of the 64 halves of the four blocks of a tile serves exactly one of its 32 elements,
// with two halves for one place in the picture of the header.
TEST(RandomStream, EveryElementHasItsOwnHalfWord) {
  const RandomStream random(7, Stream::kRound);
  for (const std::uint64_t tile : {std::uint64_t{0}, std::uint64_t{5}, std::uint64_t{1} << 40}) {
    std::multiset<std::uint32_t> drawn, halves;
    for (std::uint64_t i = 0; i < kTileElements; ++i)
      drawn.insert(random.draw(tile * kTileElements + i));
    for (std::uint64_t block = 0; block < kTileBlocks; ++block)
      for (const std::uint32_t word : random.block(tile * kTileBlocks + block, random.stream)) {
        halves.insert(word & 0xffffu);
        halves.insert(word >> 16);
      }
    EXPECT_EQ(drawn, halves);
  }
}

TEST(RandomStream, SeedsStreamsAndElementsDiffer) {
  int equal = 0;
  for (std::uint64_t i = 0; i < 10000; ++i) {
    const std::uint32_t r = RandomStream(1, Stream::kPrune).draw(i);
    equal += r == RandomStream(2, Stream::kPrune).draw(i);
    equal += r == RandomStream(1, Stream::kRound).draw(i);
    equal += r == RandomStream(1, Stream::kPrune).draw(i + 1);
    equal += r == RandomStream(1, Stream::kPrune).draw(i + (std::uint64_t{1} << 37));
  }
  EXPECT_LE(equal, 6);  // 40,000 / 65,536 are expected; more than 6 come once in a million.
}

TEST(RandomStream, CertainAndImpossible) {
  const RandomStream random(3, Stream::kRound);
  for (std::uint64_t i = 0; i < 200000; ++i) {  // With refinements: three zeros are expected.
    ASSERT_FALSE(random.happens(i, 0.0f));
    ASSERT_TRUE(random.happens(i, 1.0f));
  }
}

// Within 4 standard errors sqrt(p (1 - p) / n), n = 2^22; the smaller probabilities are decided by
// the refinement alone.
TEST(RandomStream, ProbabilitiesAreRight) {
  const RandomStream random(11, Stream::kRound);
  constexpr std::uint64_t n = 1 << 22;
  for (const float p : {0.5f, 0.3f, 0.999f, 1e-2f, 0x1.8p-16f, 0x1p-17f, 0x1p-18f}) {
    double happened = 0;
    for (std::uint64_t i = 0; i < n; ++i) happened += random.happens(i, p);
    EXPECT_NEAR(happened / n, p, 4 * std::sqrt(p * (1 - p) / n)) << p;
  }
}

// R alone, where r decides nothing: element i is refined if its r is 0 for a p below 2^-16.
TEST(RandomStream, RefinementIsUniform) {
  const RandomStream random(5, Stream::kPrune);
  constexpr int n = 1 << 16;
  double sum = 0;
  for (std::uint64_t i = 0; i < n; ++i) {
    ASSERT_LT(random.refinement(i), std::uint64_t{1} << 63);
    sum += std::ldexp(static_cast<double>(random.refinement(i)), -63);
  }
  EXPECT_NEAR(sum / n, 0.5, 4 / std::sqrt(12.0 * n));
}

}  // namespace
}  // namespace slimgrad
