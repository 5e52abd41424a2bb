#include <slimgrad/steps.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <slimgrad/error.h>

#include "math/fewbit/step_oracle.h"

namespace slimgrad {
namespace {

// A grid of its own kind (uniform, midpoint sums, all pairs) finds nothing better than the table,
// and with 500 cells not much worse.
double coarse_grid_error(const StepTarget& target, int bits, double low, double high,
                         const Function& weight) {
  const int n = 500, per_cell = 64;
  std::vector<double> mass(n + 1), first(n + 1), second(n + 1);
  for (int i = 0; i < n * per_cell; ++i) {
    const double x = low + (high - low) * (i + 0.5) / (n * per_cell);
    const double w = weight(x) * (high - low) / (n * per_cell), g = target.derivative(x);
    const int c = i / per_cell + 1;
    mass[c] += w;
    first[c] += w * g;
    second[c] += w * g * g;
  }
  for (auto* sums : {&mass, &first, &second})
    std::partial_sum(sums->begin(), sums->end(), sums->begin());
  std::vector<double> best(n + 1, std::numeric_limits<double>::infinity());
  best[0] = 0;
  for (int piece = 0; piece < 1 << bits; ++piece) {
    std::vector<double> next(n + 1, std::numeric_limits<double>::infinity());
    for (int i = 1; i <= n; ++i)
      for (int j = 0; j < i; ++j) {
        const double w = mass[i] - mass[j], s = first[i] - first[j];
        const double cost = w > 0 ? second[i] - second[j] - s * s / w : 0;
        next[i] = std::min(next[i], best[j] + cost);
      }
    best = std::move(next);
  }
  return best[n];
}

TEST(Steps, NoGridFindsABetterTable) {
  for (const std::string_view name : activation_names()) {
    StepTarget target = activation_target(name);
    target.even = false;
    for (const int bits : {1, 2, 3}) {
      // The ends make hardswish's jumps, and the others', fall on the grid of step 0.02.
      const StepTable table = steps(target, bits, -4, 6, StepWeight::kNormal);
      const double grid = coarse_grid_error(target, bits, -4, 6, normal_density);
      EXPECT_LE(table.error, grid + 1e-6 * grid + 1e-12) << name << ' ' << bits;
      EXPECT_GE(table.error, 0.9 * grid - 1e-12) << name << ' ' << bits;
    }
  }
}

TEST(Steps, MovingAnythingNeverHelps) {
  const double low = -6, high = 6;
  for (const std::string_view name : activation_names()) {
    const StepTarget target = activation_target(name);
    const StepTable table = steps(target, 2, low, high, normal_density);
    const auto error = [&](const StepTable& other) {
      return integrate_error(other, target, low, high, normal_density);
    };
    const double least = error(table) * (1 - 1e-9) - 1e-16;
    for (const double by : {-1e-1, -1e-3, 1e-3, 1e-1}) {
      for (std::size_t i = 0; i < table.levels.size(); ++i) {
        StepTable other = table;
        other.levels[i] += by;
        EXPECT_GE(error(other), least) << name << " level " << i << " by " << by;
      }
      for (std::size_t i = 0; i < table.borders.size(); ++i) {
        StepTable other = table;
        other.borders[i] += by;
        if (!std::is_sorted(other.borders.begin(), other.borders.end())) continue;
        EXPECT_GE(error(other), least) << name << " border " << i << " by " << by;
      }
    }
  }
}

TEST(Steps, PiecewiseConstantDerivativesAreExact) {
  for (const char* name : {"relu", "leaky_relu", "threshold", "relu6", "hardtanh", "hardsigmoid",
                           "hardshrink", "softshrink"}) {
    const StepTarget target = activation_target(name);
    const int needed = std::string_view(name) == "relu6" ? 2 : 1;
    for (int bits = needed; bits <= 5; ++bits)
      for (const StepWeight weight : {StepWeight::kUniform, StepWeight::kNormal}) {
        const StepTable table = steps(name, bits, -10, 10, weight);
        SCOPED_TRACE(name);
        expect_well_formed(table, bits);
        EXPECT_LT(table.error, 1e-28);
        for (double x = -9.987; x < 10; x += 0.0213)
          EXPECT_NEAR(level_at(table, x), target.derivative(x), 1e-15) << x;
      }
  }
  const StepTable relu = steps("relu", 1);
  EXPECT_THAT(relu.borders, testing::ElementsAre(0));
  EXPECT_THAT(relu.levels, testing::ElementsAre(0, 1));
  EXPECT_EQ(level_at(relu, 0), 0);  // as torch has it
  EXPECT_THAT(steps("relu", 2).borders, testing::ElementsAre(-5, 0, 5));
  EXPECT_THAT(steps("hardsigmoid", 1).borders, testing::ElementsAre(3));
  // Three pieces in one bit: not exact, the best two. Left of 6 the error is least with the border
  // at 0: int over 0 .. 10 of a 0/1 function with mean 0.6 is 10 * 0.6 * 0.4.
  EXPECT_NEAR(steps("relu6", 1).error, 2.4, 1e-12);
  // An interval without the jump: a constant.
  const StepTable constant = steps("relu", 2, 1, 5);
  EXPECT_THAT(constant.levels, testing::Each(1));
  EXPECT_THAT(constant.borders, testing::ElementsAre(2, 3, 4));
}

TEST(Steps, FoldingCountsBothSides) {
  // The folded table over -10 .. 10 is the plain one over 0 .. 10, with twice the error.
  StepTarget target = activation_target("tanh");
  const StepTable folded = steps(target, 3, -10, 10);
  target.even = false;
  const StepTable half = steps(target, 3, 0, 10);
  EXPECT_TRUE(folded.even);
  EXPECT_FALSE(half.even);
  EXPECT_NEAR(folded.error, 2 * half.error, 1e-12 * half.error);
  for (std::size_t i = 0; i < 7; ++i) EXPECT_NEAR(folded.borders[i], half.borders[i], 1e-9);
  // Twice as many pieces on the half line: better than the unfolded table.
  EXPECT_LT(folded.error, steps(target, 3, -10, 10).error);
}

TEST(Steps, FoldingAnyIntervalAndAnyWeight) {
  const Function lopsided = [](double x) { return std::exp(-(x - 1) * (x - 1) / 3); };
  for (const char* name : {"tanh", "sigmoid", "softsign", "tanhshrink", "hardsigmoid"}) {
    const StepTarget target = activation_target(name);
    const std::pair<double, double> intervals[] = {{-2, 5},  {-5, 2}, {1, 5},
                                                   {-5, -1}, {0, 4},  {-4, 0}};
    for (const auto& [low, high] : intervals)
      for (const int bits : {1, 3}) {
        SCOPED_TRACE(testing::Message() << name << ' ' << low << ' ' << high << ' ' << bits);
        const StepTable table = steps(target, bits, low, high, lopsided);
        EXPECT_TRUE(table.even);
        expect_well_formed(table, bits);
        EXPECT_NEAR(integrate_error(table, target, low, high, lopsided), table.error,
                    1e-9 * table.error + 1e-25);
      }
  }
  // Mirrored interval and weight: the same table.
  const auto mirrored = [&](double x) { return lopsided(-x); };
  const StepTable a = steps(activation_target("tanh"), 2, -2, 5, lopsided);
  const StepTable b = steps(activation_target("tanh"), 2, -5, 2, mirrored);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(a.borders[i], b.borders[i], 1e-9);
}

TEST(Steps, LineUnderUniformWeight) {
  // f' = x on 0 .. 1 in n pieces: equal ones, error 1 / (12 n^2).
  const StepTarget target{[](double x) { return x; }, {}, false};
  for (int bits = 1; bits <= 5; ++bits) {
    const int n = 1 << bits;
    const StepTable table = steps(target, bits, 0, 1, [](double) { return 1.0; });
    EXPECT_NEAR(table.error, 1.0 / (12 * n * n), 1e-14);
    for (int i = 0; i < n; ++i) EXPECT_NEAR(table.levels[i], (i + 0.5) / n, 1e-12);
    for (int i = 1; i < n; ++i) EXPECT_NEAR(table.borders[i - 1], 1.0 * i / n, 1e-12);
  }
  // The same, tiny and shifted: nothing assumes a scale.
  const StepTable tiny = steps(target, 2, 3, 3 + 1e-6);
  EXPECT_NEAR(tiny.borders[1], 3 + 5e-7, 1e-11);
}

TEST(Steps, LloydMaxQuantizerOfTheNormal) {
  // f' = x under the normal density is the classic scalar quantizer. Values: Lloyd's iteration for
  // the positive half with scipy.stats.norm (levels = (pdf(e_i) - pdf(e_i+1)) / (cdf(e_i+1) -
  // cdf(e_i)), edges = midpoints, 20000 rounds), error = 1 - 2 sum mass * level^2.
  const StepTarget target{[](double x) { return x; }, {0.0}, false};
  const double errors[] = {0.3633802276324186, 0.11748184782932947, 0.034547760788503634,
                           0.009501008008191647, 0.0025046683556742};
  for (int bits = 1; bits <= 5; ++bits)
    EXPECT_NEAR(steps(target, bits, -30, 30, StepWeight::kNormal).error, errors[bits - 1], 1e-11);
}

TEST(Steps, WeightsWithTailsGapsAndManyBreaks) {
  // Far tails: the mass beyond 10 is 1e-23, beyond 40 it is zero in double precision.
  for (const char* name : {"gelu", "silu", "hardswish", "tanh"}) {
    const double expected = steps(name, 4, -10, 10, StepWeight::kNormal).error;
    for (const double end : {40.0, 100.0, 3000.0})
      EXPECT_NEAR(steps(name, 4, -end, end, StepWeight::kNormal).error, expected, 1e-9 * expected)
          << name << ' ' << end;
  }
  // A gap without weight.
  StepTarget gap = activation_target("silu");
  gap.breaks.insert(gap.breaks.end(), {-1, 1});
  const Function outside = [](double x) { return std::abs(x) > 1 ? 1.0 : 0.0; };
  const StepTable table = steps(gap, 3, -5, 5, outside);
  expect_well_formed(table, 3);
  EXPECT_NEAR(integrate_error(table, gap, -5, 5, outside), table.error, 1e-9 * table.error);
  // A histogram: 1000 bins of the normal density, close to the density itself.
  StepTarget binned = activation_target("gelu");
  for (int i = -500; i <= 500; ++i) binned.breaks.push_back(i / 100.0);
  const Function histogram = [](double x) {
    return normal_density((std::floor(x * 100) + 0.5) / 100);
  };
  const double expected = steps("gelu", 3, -5, 5, StepWeight::kNormal).error;
  const StepTable from_bins = steps(binned, 3, -5, 5, histogram);
  expect_well_formed(from_bins, 3);
  EXPECT_NEAR(from_bins.error, expected, 1e-3 * expected);
}

TEST(Steps, MoreBitsAndScaling) {
  for (const char* name : {"gelu", "mish", "quick_gelu", "selu"}) {
    double before = std::numeric_limits<double>::infinity();
    for (int bits = 1; bits <= 5; ++bits) {
      const double error = steps(name, bits).error;
      EXPECT_LT(error, before);
      before = error;
    }
  }
  // The error is linear in the weight, quadratic in the target; borders do not change.
  const StepTarget target = activation_target("gelu");
  const StepTarget scaled{[&](double x) { return -1e3 * target.derivative(x); }, {0.0}, false};
  const StepTable plain = steps(target, 3, -7, 9, normal_density);
  const StepTable other =
      steps(scaled, 3, -7, 9, [](double x) { return 1e-9 * normal_density(x); });
  EXPECT_NEAR(other.error, 1e-3 * plain.error, 1e-12 * plain.error);
  for (std::size_t i = 0; i < 7; ++i) EXPECT_NEAR(other.borders[i], plain.borders[i], 1e-9);
}

TEST(Steps, UndeclaredJumpIsFoundAnyway) {
  const StepTarget target{[](double x) { return x > 0.3 ? 1.0 : 0.0; }, {}, false};
  const StepTable table = steps(target, 1, -10, 10);
  EXPECT_NEAR(table.borders[0], 0.3, 1e-9);
  EXPECT_LT(table.error, 1e-9);
  expect_well_formed(steps(target, 5, -10, 10), 5);
}

TEST(Steps, RefusesBadArguments) {
  const double inf = std::numeric_limits<double>::infinity();
  for (const int bits : {-1, 0, 6, 64}) EXPECT_THROW(steps("gelu", bits), InvalidArgument);
  const std::pair<double, double> intervals[] = {{1, 1},    {2, 1},   {NAN, 1},           {0, NAN},
                                                 {-inf, 1}, {0, inf}, {-1.5e308, 1.5e308}};
  for (const auto& [low, high] : intervals)
    EXPECT_THROW(steps("gelu", 3, low, high), InvalidArgument) << low << ' ' << high;
  EXPECT_THROW(steps("nonsense", 3), InvalidArgument);
  EXPECT_THROW(parse_step_weight("gaussian"), InvalidArgument);
  EXPECT_EQ(parse_step_weight("normal"), StepWeight::kNormal);
  EXPECT_EQ(parse_step_weight("uniform"), StepWeight::kUniform);

  const StepTarget gelu = activation_target("gelu");
  const Function one = [](double) { return 1.0; };
  for (const double bad : {std::nan(""), inf, -1.0}) {
    const Function weight = [=](double x) { return x > 3 ? bad : 1.0; };
    EXPECT_THROW(steps(gelu, 3, -5, 5, weight), InvalidArgument) << bad;
  }
  EXPECT_THROW(steps(gelu, 3, -5, 5, [](double) { return 0.0; }), InvalidArgument);
  EXPECT_THROW(steps("gelu", 3, 50, 60, StepWeight::kNormal), InvalidArgument);
  EXPECT_THROW(steps(gelu, 3, -5, 5, Function()), InvalidArgument);
  EXPECT_THROW(steps(StepTarget{}, 3, -5, 5, one), InvalidArgument);
  EXPECT_THROW(steps({[](double x) { return std::log(x); }, {}, false}, 3, -5, 5, one),
               InvalidArgument);
  EXPECT_THROW(steps({gelu.derivative, {NAN}, false}, 3, -5, 5, one), InvalidArgument);
  EXPECT_THROW(steps({gelu.derivative, {}, true}, 3, -5, 5, one), InvalidArgument);
  try {
    steps("gelu", 6);
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(), "[steps] expected 1 to 5 bits, got 6");
  }
}

}  // namespace
}  // namespace slimgrad
