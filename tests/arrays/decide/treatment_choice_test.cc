#include <slimgrad/gate.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>
#include <vector>

#include "kernels/measure/stratified_sample.h"
#include "stats_of.h"

namespace slimgrad {
namespace {

std::vector<float> lognormal_tensor(double sigma, int n, double zeros = 0) {
  std::mt19937_64 engine(23);
  std::normal_distribution<double> normal;
  std::vector<float> tensor;
  for (int i = 0; i < n; ++i) {
    const double x = (i % 2 ? 1 : -1) * std::exp(sigma * normal(engine) - 7);
    tensor.push_back(i < zeros * n ? 0.f : static_cast<float>(x));
  }
  return tensor;
}

TEST(TreatmentChoice, StochasticPruningUsesTheThresholdOfTheMethod) {
  const TensorStats stats = stats_of(lognormal_tensor(1.5, 50000, 0.2));
  GradientSettings settings;
  settings.prune = PruneKind::kStochastic;
  settings.sparsity = 0.85;
  for (const auto method : {ThresholdMethod::kEmpirical, ThresholdMethod::kLognormal,
                            ThresholdMethod::kGennorm, ThresholdMethod::kNormal}) {
    settings.method = method;
    const Treatment plan = choose_treatment(stats, settings);
    EXPECT_TRUE(plan.prunes() && !plan.drops);
    EXPECT_EQ(plan.threshold, threshold(stats, 0.85, method).value);
    EXPECT_FALSE(plan.quantizer);
  }
}

TEST(TreatmentChoice, TopKThresholdIsTheQuantileOfTheMagnitudes) {
  const auto tensor = lognormal_tensor(2.0, 50000, 0.3);
  GradientSettings settings;
  settings.prune = PruneKind::kTopK;
  settings.sparsity = 0.8;
  const double alpha = choose_treatment(stats_of(tensor), settings).threshold;
  const auto below =
      std::count_if(tensor.begin(), tensor.end(), [&](float x) { return std::abs(x) < alpha; });
  EXPECT_NEAR(static_cast<double>(below) / static_cast<double>(tensor.size()), 0.8, 2e-3);
}

TEST(TreatmentChoice, FormatFollowsWhatWasMeasured) {
  GradientSettings settings;
  settings.bits = 6;
  for (const double log2_std : {0.8, 1.2, 3.0, 6.0}) {
    const TensorStats stats = stats_of(lognormal_tensor(log2_std * std::log(2.0), 50000));
    const Treatment plan = choose_treatment(stats, settings);
    EXPECT_EQ(plan.quantizer->format, best_format(6, stats)) << log2_std;
    EXPECT_DOUBLE_EQ(plan.quantizer->scale * plan.quantizer->format.largest(), stats.max_abs);
    settings.split = SplitMethod::kLognormal;
    EXPECT_EQ(choose_treatment(stats, settings).quantizer->format,
              best_format(6, stats.log_std / std::log(2.0)))
        << log2_std;
    settings.split = SplitMethod::kEmpirical;
  }
  settings.format = FloatFormat(5, 0);
  EXPECT_EQ(choose_treatment(stats_of(lognormal_tensor(1, 1000)), settings).quantizer->format,
            FloatFormat(5, 0));
}

TEST(TreatmentChoice, ThresholdOfAPrunedAndQuantizedGradientIsOnTheGrid) {
  for (const double sigma : {0.5, 1.5, 3.0})
    for (const int bits : {3, 4, 6, 8}) {
      const TensorStats stats = stats_of(lognormal_tensor(sigma, 50000));
      GradientSettings settings;
      settings.prune = PruneKind::kStochastic;
      settings.sparsity = 0.85;
      settings.bits = bits;
      const Treatment plan = choose_treatment(stats, settings);
      const auto grid = plan.quantizer->format.values();
      const double scale = plan.quantizer->scale;
      SCOPED_TRACE(testing::Message()
                   << "sigma " << sigma << " format " << plan.quantizer->format.name());
      // The top still covers the largest value, and is at most one step of the grid too high.
      const double top = scale * plan.quantizer->format.largest();
      EXPECT_GE(top, std::max(stats.max_abs, plan.threshold) * (1 - 1e-12));
      EXPECT_LE(top, std::max(stats.max_abs, plan.threshold) * 2.0 + 1e-12);
      if (plan.threshold / scale < plan.quantizer->format.smallest()) {
        EXPECT_LE(bits, 4);  // Six bits cover every gradient here, from the threshold to the top.
        EXPECT_EQ(plan.quantizer->underflow, Underflow::kStochastic);
        continue;
      }
      double nearest = 1;
      for (const double v : grid)
        nearest = std::min(nearest, std::abs(v * scale / plan.threshold - 1));
      EXPECT_LT(nearest, 1e-12);
    }
}

TEST(TreatmentChoice, LeavesAloneWhatHasNothingToCompress) {
  GradientSettings settings;
  settings.prune = PruneKind::kStochastic;
  settings.sparsity = 0.5;
  settings.bits = 4;
  const Treatment zeros = choose_treatment(stats_of({0, 0, 0}), settings);
  EXPECT_FALSE(zeros.prunes());
  EXPECT_FALSE(zeros.quantizer);
  const Treatment sparse = choose_treatment(stats_of({0, 0, 0, 1}), settings);
  EXPECT_FALSE(sparse.prunes());
  EXPECT_TRUE(sparse.quantizer);
}

TEST(TreatmentChoice, GuardKeepsAnOldScaleNearTheOneOfToday) {
  const auto tensor = lognormal_tensor(1.0, 20000);
  const TensorStats then = stats_of(tensor);
  for (const auto prune : {PruneKind::kNone, PruneKind::kStochastic})
    for (const double factor : {1e-6, 0.5, 0.9, 1.0, 1.5, 1e6}) {
      GradientSettings settings;
      settings.bits = 6;
      settings.prune = prune;
      settings.sparsity = prune == PruneKind::kNone ? 0 : 0.8;
      const Treatment old = choose_treatment(then, settings);
      std::vector<float> now = tensor;
      for (float& x : now) x *= static_cast<float>(factor);
      const TensorStats stats = stats_of(now);
      const Treatment guarded = guard_treatment(old, stats, settings);
      const double top = guarded.quantizer->scale * guarded.quantizer->format.largest();
      SCOPED_TRACE(testing::Message() << "factor " << factor);
      EXPECT_GE(top, stats.max_abs * (1 - 1e-6));      // nothing is clipped
      EXPECT_LE(top, stats.max_abs * 8 * (1 + 1e-6));  // one octave more to meet the threshold
      if (factor == 0.9) {
        EXPECT_EQ(guarded.quantizer->scale, old.quantizer->scale);
      }
    }
  GradientSettings fixed;
  fixed.bits = 6;
  fixed.fixed_scale = 1e-3;  // a global loss scale has a rule of its own
  const Treatment old = choose_treatment(then, fixed);
  std::vector<float> large = tensor;
  for (float& x : large) x *= 1e6f;
  EXPECT_EQ(guard_treatment(old, stats_of(large), fixed).quantizer->scale, 1e-3);
}

TEST(TreatmentChoice, GuardKeepsAnOldThresholdFromDrowningASmallGradient) {
  GradientSettings settings;
  settings.prune = PruneKind::kStochastic;
  settings.sparsity = 0.9;
  const auto tensor = lognormal_tensor(1.5, 50000);
  Treatment old = choose_treatment(stats_of(tensor), settings);
  std::vector<float> shrunken = tensor;
  for (float& x : shrunken) x *= 1e-3f;
  const TensorStats now = stats_of(shrunken);
  const Treatment guarded = guard_treatment(old, now, settings);
  EXPECT_DOUBLE_EQ(guarded.threshold, now.mean_abs / 0.1);
  EXPECT_GT(exact_cosine(shrunken, guarded.threshold), 3 * exact_cosine(shrunken, old.threshold));
  // A fresh plan is never changed: its threshold is below the guard's by construction.
  EXPECT_EQ(guard_treatment(old, stats_of(tensor), settings).threshold, old.threshold);
}

TEST(StratifiedSample, TakesOneOfEachStratumAndMoves) {
  for (const std::uint64_t n : {1u, 10u, 1000u, 1001u, 99991u}) {
    const kernels::StratifiedSample a(n, 100, 1), b(n, 100, 2);
    ASSERT_LE(a.size(), std::min<std::uint64_t>(n, 100));
    ASSERT_GT(2 * a.size(), std::min<std::uint64_t>(n, 100));
    std::set<std::uint64_t> seen;
    std::uint64_t moved = 0;
    for (std::uint64_t i = 0; i < a.size(); ++i) {
      ASSERT_LT(a.position(i), n);
      seen.insert(a.position(i));
      moved += a.position(i) != b.position(i);
    }
    EXPECT_EQ(seen.size(), a.size());
    if (n > 1000) {
      EXPECT_GT(moved, a.size() / 2);
    }
  }
  // 2^33 elements do not overflow.
  const kernels::StratifiedSample large(std::uint64_t{1} << 33, 1 << 16, 5);
  EXPECT_LT(large.position((1 << 16) - 1), std::uint64_t{1} << 33);
}

// The worst case are half as many more elements than wanted. 4 standard errors of 4,000 keys, and a
// few for the 150 comparisons.
TEST(StratifiedSample, GivesEveryElementTheSameChance) {
  constexpr std::uint64_t kElements = 150, kKeys = 4000;
  std::vector<double> seen(kElements);
  double size = 0;
  for (std::uint64_t key = 0; key < kKeys; ++key) {
    const kernels::StratifiedSample sample(kElements, 100, key);
    size = static_cast<double>(sample.size());
    for (std::uint64_t i = 0; i < sample.size(); ++i) ++seen[sample.position(i)];
  }
  const double chance = size / kElements;
  for (const double count : seen)
    EXPECT_NEAR(count / kKeys, chance, 5 * std::sqrt(chance * (1 - chance) / kKeys));
}

TEST(StratifiedSample, VisitsItsPositions) {
  for (const std::uint64_t n : {1u, 2u, 7u, 100u, 101u, 12345u}) {
    const kernels::StratifiedSample sample(n, 100, 9);
    for (const std::uint64_t first : {0u, 1u, 4u, 5u}) {
      std::uint64_t expected = first;
      sample.visit(first, sample.size(), [&](std::uint64_t i, std::uint64_t position) {
        EXPECT_EQ(i, expected++);
        EXPECT_EQ(position, sample.position(i)) << n << " " << i;
      });
      EXPECT_EQ(expected, std::max(first, sample.size()));
    }
  }
}

TEST(StratifiedSample, SeesEveryChannel) {
  // A strided sample of this channels-last tensor would see one channel of 96.
  std::vector<int> seen(96);
  const kernels::StratifiedSample sample(96 * 4096, 4096, 3);
  for (std::uint64_t i = 0; i < sample.size(); ++i) ++seen[sample.position(i) % 96];
  // 4,096 draws over 96 channels: 42.7 each, with a standard deviation of about 6.5.
  EXPECT_GT(*std::min_element(seen.begin(), seen.end()), 42 - 5 * 7);
  EXPECT_LT(*std::max_element(seen.begin(), seen.end()), 43 + 5 * 7);
}

}  // namespace
}  // namespace slimgrad
