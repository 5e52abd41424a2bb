#include "base/rng.h"

#include <gtest/gtest.h>

#include <array>
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

// Four elements, 32 apart, have the four windows of one word, and four more the same half a turn
// further; all 32 words of two tiles serve.
TEST(RandomStream, WindowsTurnWordsAround) {
  const RandomStream random(5, Stream::kSaved);
  for (const std::uint64_t first :
       {std::uint64_t{0}, 3 * kWindowElements, std::uint64_t{1} << 40}) {
    std::multiset<std::uint32_t> words, draws;
    for (std::uint64_t i = 0; i < 32; ++i) {
      const std::uint32_t word = random.window(first + i) | random.window(first + 64 + i) << 16;
      EXPECT_EQ(random.window(first + 32 + i), (word >> 8) & 0xffffu);
      EXPECT_EQ(random.window(first + 96 + i), (word >> 24 | word << 8) & 0xffffu);
      words.insert((word ^ 0x8000u) & 0xffffu);
      words.insert((word >> 16) ^ 0x8000u);
    }
    for (std::uint64_t i = 0; i < 128; ++i)
      EXPECT_EQ(random.window(first + 128 + i), random.window(first + i) ^ 0x8000u);
    for (std::uint64_t i = 0; i < 2 * kTileElements; ++i) draws.insert(random.draw(first / 4 + i));
    EXPECT_EQ(words, draws);
  }
}

// Elements 32 apart share a half word; each of the four takes it shifted by its quarters.
TEST(RandomStream, DrawsForPruningAreStratified) {
  const RandomStream random(9, Stream::kPrune);
  std::set<std::uint32_t> drawn;
  for (const std::uint64_t first : {std::uint64_t{0}, std::uint64_t{128} * 77}) {
    for (std::uint64_t i = first; i < first + kTileElements; ++i) {
      drawn.insert(random.draw(i));
      for (std::uint64_t q = 1; q < kPruneStrata; ++q)
        EXPECT_EQ(random.draw(i + q * kTileElements), (random.draw(i) + q * 0x4000) % 0x10000);
    }
  }
  EXPECT_GE(drawn.size(), 62u);  // of 64; the next 128 elements do not share with these
}

// So that of four elements whose probabilities are up to a quarter at most one is kept, and of four
// quarters exactly one, refinements aside.
TEST(RandomStream, StrataAreExclusive) {
  const RandomStream random(13, Stream::kPrune);
  for (std::uint64_t i = 0; i < 1 << 16; ++i) {
    const std::uint64_t first =
        i / kTileElements * kPruneStrata * kTileElements + i % kTileElements;
    int kept = 0;
    for (std::uint64_t q = 0; q < kPruneStrata; ++q)
      kept += random.happens(first + q * kTileElements, 0.25f);
    ASSERT_EQ(kept, 1) << i;
  }
}

TEST(RandomStream, CertainAndImpossible) {
  const RandomStream random(3, Stream::kRound);
  for (std::uint64_t i = 0; i < 200000; ++i) {  // With refinements: three zeros are expected.
    ASSERT_FALSE(random.happens(i, 0.0f));
    ASSERT_TRUE(random.happens(i, 1.0f));
  }
}

// Within 4 standard errors sqrt(p (1 - p) / n), n = 2^20 elements of each of the four tiles in a
// row, so that with strata they are independent; the smaller probabilities are decided by the
// refinement alone.
TEST(RandomStream, ProbabilitiesAreRight) {
  constexpr std::uint64_t n = 1 << 20;
  for (const Stream stream : {Stream::kPrune, Stream::kRound}) {
    const RandomStream random(11, stream);
    for (const float p : {0.5f, 0.3f, 0.999f, 1e-2f, 0x1.8p-16f, 0x1p-17f}) {
      std::array<double, 4> happened{};
      for (std::uint64_t i = 0; i < 4 * n; ++i)
        happened[i / kTileElements % 4] += random.happens(i, p);
      for (const double count : happened)
        EXPECT_NEAR(count / n, p, 4 * std::sqrt(p * (1 - p) / n)) << p;
    }
  }
}

// Two elements that share are never kept together while p, p' <= 1/4, so that the correlation of
// their decisions is -p p' / sqrt(p (1 - p) p' (1 - p')). Within 4 standard errors.
TEST(RandomStream, ElementsThatShareAreCorrelatedAsWritten) {
  const RandomStream random(17, Stream::kPrune);
  constexpr std::uint64_t n = 1 << 20;
  const float p = 0.1f, q = 0.2f;
  double both = 0, first = 0, second = 0;
  for (std::uint64_t i = 0; i < n; ++i) {
    const std::uint64_t at = i / kTileElements * kPruneStrata * kTileElements + i % kTileElements;
    const bool a = random.happens(at, p), b = random.happens(at + 2 * kTileElements, q);
    both += a && b;
    first += a;
    second += b;
  }
  const double spread = std::sqrt(p * (1 - p) * q * (1 - q));
  const double correlation = (both / n - first / n * second / n) / spread;
  EXPECT_NEAR(correlation, -p * q / spread, 4 / std::sqrt(static_cast<double>(n)));
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
