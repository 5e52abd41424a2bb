#include "trainer/generated_data.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <set>
#include <string>

namespace slimgrad::trainer {
namespace {

constexpr std::uint64_t kSeed = 1;

// FNV-1a, 64 bits.
std::uint64_t hash_of(std::span<const std::uint8_t> bytes) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const std::uint8_t byte : bytes) hash = (hash ^ byte) * 0x100000001b3u;
  return hash;
}

// The images are part of what a published result rests on: they may not change unnoticed, on no
// machine and with no compiler.
TEST(Glyphs, AreTheSameEverywhere) {
  EXPECT_EQ(hash_of(draw_glyphs(kSeed, Split::kTraining, 20, 1).images), 16834432981418278696u);
  EXPECT_EQ(hash_of(draw_glyphs(kSeed, Split::kTest, 20, 1).images), 966785766601257577u);
}

TEST(Glyphs, DoNotDependOnThreads) {
  const GlyphSet one = draw_glyphs(kSeed, Split::kTraining, 53, 1);
  for (const int threads : {2, 3, 60}) {
    const GlyphSet many = draw_glyphs(kSeed, Split::kTraining, 53, threads);
    EXPECT_EQ(one.images, many.images);
    EXPECT_EQ(one.labels, many.labels);
  }
}

TEST(Glyphs, DifferByIndexSplitAndSeed) {
  const auto image = [](std::uint64_t seed, Split split, std::uint64_t index) {
    std::array<std::uint8_t, kImageBytes> bytes;
    draw_glyph(seed, split, index, bytes);
    return hash_of(bytes);
  };
  std::set<std::uint64_t> hashes;
  for (const std::uint64_t seed : {kSeed, kSeed + 1, kSeed + (std::uint64_t{1} << 32)})
    for (const Split split : {Split::kTraining, Split::kTest})
      for (const std::uint64_t index : {0, 10, 20}) hashes.insert(image(seed, split, index));
  EXPECT_EQ(hashes.size(), 18u);
}

TEST(Glyphs, ClassesAreBalancedAndNamed) {
  const GlyphSet set = draw_glyphs(kSeed, Split::kTraining, 200, 1);
  std::array<int, kNumClasses> count{};
  for (const std::int64_t label : set.labels) ++count.at(static_cast<std::size_t>(label));
  for (const int images : count) EXPECT_EQ(images, 20);
  std::set<std::string> names;
  for (int c = 0; c < kNumClasses; ++c) names.emplace(glyph_name(c));
  EXPECT_EQ(names.size(), std::size_t{kNumClasses});
}

TEST(Glyphs, NoneIsAnEmptySet) {
  EXPECT_TRUE(draw_glyphs(kSeed, Split::kTest, 0, 2).images.empty());
}

// Neither the brightness nor the colour of an image tells its class. Means of a class over 400
// images; a channel of an image has a mean with a standard deviation of at most 75 over images, so
// a class mean has a standard error of at most 3.75. Allow four.
TEST(Glyphs, ColoursCarryNoInformation) {
  constexpr int kImages = 4000;
  const GlyphSet set = draw_glyphs(kSeed, Split::kTraining, kImages, 2);
  for (int channel = 0; channel < kNumChannels; ++channel) {
    std::array<double, kNumClasses> mean{};
    double overall = 0;
    for (int i = 0; i < kImages; ++i)
      for (int p = 0; p < kImagePixels; ++p)
        mean[static_cast<std::size_t>(glyph_class(static_cast<std::uint64_t>(i)))] +=
            set.images[static_cast<std::size_t>(i * kImageBytes + channel * kImagePixels + p)] /
            (double{kImages} / kNumClasses * kImagePixels);
    for (const double value : mean) overall += value / kNumClasses;
    for (const double value : mean) EXPECT_LT(std::abs(value - overall), 15) << channel;
  }
}

}  // namespace
}  // namespace slimgrad::trainer
