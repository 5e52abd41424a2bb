#include "trainer/gradient_probe.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>

namespace slimgrad::trainer {
namespace {

std::vector<float> lognormal(std::size_t count, double deviation) {
  std::mt19937 generator(1);
  std::normal_distribution<double> normal;
  std::vector<float> values(count);
  for (float& value : values)
    value = static_cast<float>(std::exp(deviation * normal(generator)) *
                               (generator() % 2 == 0 ? 1 : -1));
  return values;
}

double distance(const std::vector<FamilyFit>& fits, Family family) {
  for (const FamilyFit& fit : fits)
    if (fit.law.family() == family) return fit.ks_distance;
  return -1;
}

TEST(GradientProbe, FindsTheLaw) {
  for (const std::size_t count : {std::size_t{20000}, 3 * kFitSample}) {
    const auto fits = fit_families(lognormal(count, 2));
    EXPECT_EQ(fits.size(), kAllFamilies.size());
    // A right law is within 1.36 / sqrt(n) in 95 of 100 cases.
    EXPECT_LT(distance(fits, Family::kLognormal), 0.015);
    EXPECT_GT(distance(fits, Family::kNormal), 0.3);
  }
}

TEST(GradientProbe, LeavesOutWhatCannotBeFitted) {
  EXPECT_TRUE(fit_families(std::vector<float>(100)).empty());
  const auto fits = fit_families(std::vector<float>(100, 2.0f));
  EXPECT_EQ(distance(fits, Family::kLognormal), -1);
  EXPECT_GE(distance(fits, Family::kNormal), 0);
}

TEST(GradientProbe, CodesNeedAtLeastTheEntropy) {
  const auto values = lognormal(50000, 1);
  const CodeSizes sizes = code_sizes(values, 8);
  EXPECT_EQ(sizes.codes.size(), 8u);
  // By hand: the levels are multiples of the largest magnitude over 127.
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::abs(value));
  std::vector<double> shares(255);
  for (const float value : values)
    shares[static_cast<std::size_t>(std::nearbyint(value / (largest / 127)) + 127)] += 1. / 50000;
  double entropy = 0;
  for (const double share : shares) entropy -= share > 0 ? share * std::log2(share) : 0;
  EXPECT_NEAR(sizes.entropy, entropy, 0.01);
  for (const CodeSize& code : sizes.codes) {
    EXPECT_GE(code.bits, sizes.entropy) << code.coder;
    if (code.model == TableModel::kCounted && code.coder == "rans") {
      EXPECT_LT(code.bits, 1.05 * sizes.entropy + 0.1);
    }
  }
}

TEST(GradientProbe, FewerLevelsHaveLessEntropy) {
  const auto values = lognormal(50000, 1);
  double before = 8;
  for (const int bits : kQuantizerBits) {
    const CodeSizes sizes = code_sizes(values, bits);
    EXPECT_EQ(sizes.quantizer_bits, bits);
    EXPECT_LT(sizes.entropy, before);
    EXPECT_LT(sizes.entropy, std::log2((1 << bits) - 1));
    before = sizes.entropy;
  }
}

TEST(GradientProbe, CodesNothingThatIsNotFinite) {
  auto values = lognormal(100, 1);
  values[5] = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(code_sizes(values, 8).codes.empty());
  EXPECT_TRUE(code_sizes({}, 8).codes.empty());
}

}  // namespace
}  // namespace slimgrad::trainer
