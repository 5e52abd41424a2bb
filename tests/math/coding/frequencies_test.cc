#include "math/coding/frequencies.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "arrays/coding/symbols.h"
#include "kernels/coding/value_symbols.h"

namespace slimgrad {
namespace {

// The optimum by dynamic programming over all ways to share 4096 among few symbols.
double best_cost(const std::vector<std::uint64_t>& w, int total) {
  std::vector<double> best(total + 1, std::numeric_limits<double>::infinity());
  best[0] = 0.0;
  for (const std::uint64_t weight : w) {
    std::vector<double> next(total + 1, std::numeric_limits<double>::infinity());
    for (int used = 0; used < total; ++used)
      if (best[used] < 1e300)
        for (int f = 1; f <= total - used && f <= 4095; ++f)
          next[used + f] =
              std::min(next[used + f], best[used] - static_cast<double>(weight) * std::log2(f));
    best = next;
  }
  double sum = 0.0;
  for (const std::uint64_t weight : w) sum += static_cast<double>(weight);
  return best[total] + sum * std::log2(total);
}

TEST(Frequencies, OptimalAgainstDynamicProgramming) {
  std::mt19937_64 random(2);
  for (int trial = 0; trial < 6; ++trial) {
    std::vector<std::uint64_t> list(3 + trial % 3);
    Weights weights = {};
    for (std::size_t i = 0; i < list.size(); ++i)
      weights[20 * i] = list[i] = 1 + (random() >> (20 + random() % 43));
    const auto f = fit_frequencies(weights);
    ASSERT_TRUE(f && is_valid(*f));
    const double best = best_cost(list, 4096);
    EXPECT_NEAR(coded_bits(weights, *f), best, 1e-9 * best);
  }
}

TEST(Frequencies, ExtremeCounts) {
  Weights weights = {};
  EXPECT_FALSE(fit_frequencies(weights));
  weights[9] = 5;
  EXPECT_FALSE(fit_frequencies(weights));
  weights[10] = std::uint64_t{1} << 51;
  const auto two = fit_frequencies(weights);
  ASSERT_TRUE(two);
  EXPECT_EQ(two->frequency[9], 1);
  EXPECT_EQ(two->frequency[10], 4095);
  weights.fill(1);
  const auto equal = fit_frequencies(weights);
  ASSERT_TRUE(equal);
  for (const int frequency : equal->frequency) EXPECT_EQ(frequency, 16);
  // 255 symbols that deserve nothing and one that deserves all.
  weights[77] = std::uint64_t{1} << 50;
  const auto f = fit_frequencies(weights);
  ASSERT_TRUE(f && is_valid(*f));
  EXPECT_EQ(f->frequency[77], 4096 - 255);
}

TEST(Frequencies, RareSymbolsShareAnEscape) {
  Weights weights = {};
  weights[100] = 1 << 20;
  weights[101] = 1 << 19;
  weights[102] = 40;
  EXPECT_FALSE(choose_frequencies(weights)->has_escape());  // one rare symbol gains nothing
  weights[3] = 50;
  weights[200] = 1;
  const RansFrequencies f = choose_frequencies(weights).value();
  ASSERT_TRUE(is_valid(f));
  EXPECT_EQ(f.escape, 3);
  for (const int s : {3, 102, 200}) EXPECT_TRUE(f.escapes(s));
  EXPECT_FALSE(f.escapes(100));
  // All that is left is one symbol: it and the escape.
  Weights one = {};
  one[5] = 1 << 20;
  one[6] = one[7] = 1;
  const RansFrequencies two = choose_frequencies(one).value();
  EXPECT_EQ(two.frequency[5] + two.frequency[6], 4096);
  EXPECT_EQ(two.escape, 6);
  // The cost is that of the escape and eight bits.
  const double a = std::log2(4096.0 / f.frequency[100]), b = std::log2(4096.0 / f.frequency[101]);
  const double c = std::log2(4096.0 / f.frequency[3]) + 8;
  EXPECT_NEAR(coded_bits(weights, f), a * (1 << 20) + b * (1 << 19) + c * 91, 1e-3);
}

TEST(Frequencies, TheCommonOnesAlone) {
  Weights weights = {};
  weights[100] = 1 << 18;
  weights[101] = 1 << 18;
  weights[102] = 9;  // 2^-16 of all is 8
  weights[103] = 8;
  weights[200] = 1;
  const RansFrequencies f = choose_common_frequencies(weights).value();
  ASSERT_TRUE(is_valid(f));
  EXPECT_FALSE(f.has_escape());
  EXPECT_EQ(f.frequency[102], 1);
  EXPECT_EQ(f.frequency[103] + f.frequency[200], 0);
  // The two without a frequency cost what the commonest symbol does, a byte and a place.
  const double a = std::log2(4096.0 / f.frequency[100]), b = std::log2(4096.0 / f.frequency[101]);
  EXPECT_NEAR(coded_bits(weights, f), (a + b) * (1 << 18) + 12 * 9 + (std::min(a, b) + 24) * 9,
              1e-3);
  // Too few symbols to leave one out; and too many rare ones.
  for (std::uint64_t& weight : weights) weight /= 32;
  EXPECT_FALSE(choose_common_frequencies(weights));
  weights.fill(8);
  weights[100] = weights[101] = 1 << 18;
  EXPECT_FALSE(choose_common_frequencies(weights));
}

TEST(Frequencies, CountedEntropyIsTheLibrarys) {
  const auto counts = kernels::count_bytes(gennorm_codes(0.7, 100000));
  double expected = 0.0;
  for (const double c : counts)
    if (c > 0) expected -= c * std::log2(c / 100000);
  EXPECT_NEAR(entropy_bits(to_weights(counts)), expected, 1e-9 * expected);
}

}  // namespace
}  // namespace slimgrad
