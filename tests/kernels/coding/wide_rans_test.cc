#include "kernels/coding/wide_rans.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace slimgrad::kernels {
namespace {

TEST(WideRans, QuotientsAreThoseOfTheDivision) {
  std::mt19937_64 random(1);
  const std::uint64_t largest = (std::uint64_t{1} << 63) - 1;
  for (std::uint32_t f = 1; f < 65536; ++f) {
    const WideFrequency frequency(f);
    for (std::uint64_t x : {std::uint64_t{0}, std::uint64_t{f - 1}, std::uint64_t{f}, largest,
                            largest / f * f, largest / f * f - 1, random() >> 1, random() >> 40})
      ASSERT_EQ(frequency.quotient_of(x), x / f) << x << " / " << f;
  }
}

// A stream of symbols of any frequency and raw bits comes back, and ends at state 0 without a word
// left.
TEST(WideRans, StreamsComeBack) {
  struct Step {
    std::uint32_t start, frequency;
    int bits;
    std::uint64_t raw;  // if the frequency is 0
  };
  std::mt19937_64 random(2);
  for (const std::size_t num_steps : {0, 1, 3, 10, 1000}) {
    std::vector<Step> steps;
    for (std::size_t i = 0; i < num_steps; ++i) {
      const int bits = random() % 2 == 0 ? 12 : 16;
      const auto start = static_cast<std::uint32_t>(random() % (1u << bits));
      const auto most = (1u << bits) - start;
      Step step = {start, static_cast<std::uint32_t>(1 + random() % std::min(most, 65535u)), bits,
                   0};
      if (random() % 3 == 0) {
        step = {0, 0, static_cast<int>(random() % 63), 0};
        step.raw = random() & ((std::uint64_t{1} << step.bits) - 1);
      }
      steps.push_back(step);
    }
    std::vector<std::uint8_t> buffer(16 * num_steps + 8);
    std::uint8_t* end = buffer.data() + buffer.size();
    WideRansEncoder encoder;
    for (std::size_t i = num_steps; i-- > 0;) {
      if (steps[i].frequency == 0)
        encoder.put_raw(steps[i].raw, steps[i].bits, end);
      else
        encoder.put(steps[i].start, WideFrequency(steps[i].frequency), steps[i].bits, end);
    }
    encoder.store(end);
    WideRansWords words = {end, buffer.data() + buffer.size()};
    WideRansDecoder decoder;
    ASSERT_TRUE(decoder.load(words));
    for (const Step& step : steps) {
      if (step.frequency == 0) {
        EXPECT_EQ(decoder.raw(step.bits, words), step.raw);
        continue;
      }
      const std::uint32_t offset = decoder.slot(step.bits) - step.start;
      ASSERT_LT(offset, step.frequency);
      decoder.take(offset, step.frequency, step.bits, words);
    }
    EXPECT_EQ(decoder.state, 0u);
    EXPECT_EQ(words.next, words.end);
  }
}

}  // namespace
}  // namespace slimgrad::kernels
