#include <slimgrad/steps.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/math/quadrature/gauss_kronrod.hpp>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>

#include <slimgrad/error.h>

#include "golden.h"

namespace slimgrad {
namespace {

using Function = std::function<double(double)>;

double normal_density(double x) { return std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi); }

double level_at(const StepTable& table, double x) {
  const double at = table.even ? std::abs(x) : x;
  const auto found = std::lower_bound(table.borders.begin(), table.borders.end(), at);
  return table.levels[found - table.borders.begin()];
}

// All places where the error's integrand is not smooth, on the whole axis.
std::vector<double> corners(const StepTable& table, const StepTarget& target, double low,
                            double high) {
  std::vector<double> all{low, high};
  const auto add = [&](double x) {
    if (x > low && x < high) all.push_back(x);
  };
  for (const double at : target.breaks) add(at);
  for (const double at : table.borders) {
    add(at);
    if (table.even) add(-at);
  }
  std::sort(all.begin(), all.end());
  return all;
}

// int (f' - q)^2 w from its definition, by an adaptive rule of another kind than the library's and
// without folding.
double integrate_error(const StepTable& table, const StepTarget& target, double low, double high,
                       const Function& weight) {
  using Rule = boost::math::quadrature::gauss_kronrod<double, 31>;
  const std::vector<double> cuts = corners(table, target, low, high);
  double error = 0;
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    if (cuts[i] == cuts[i + 1]) continue;
    const double level = level_at(table, cuts[i] + (cuts[i + 1] - cuts[i]) / 2);
    error += Rule::integrate(
        [&](double x) {
          const double d = target.derivative(x) - level;
          return d * d * weight(x);
        },
        cuts[i], cuts[i + 1], 12, 1e-10);
  }
  return error;
}

void expect_well_formed(const StepTable& table, int bits) {
  const std::size_t num_levels = std::size_t{1} << bits;
  ASSERT_EQ(table.levels.size(), num_levels);
  ASSERT_EQ(table.borders.size(), num_levels - 1);
  for (std::size_t i = 1; i < table.borders.size(); ++i)
    EXPECT_LT(table.borders[i - 1], table.borders[i]);
  EXPECT_GE(table.error, 0);
}

// f'(border) = mean of the neighbours, or the one-sided limits lie on either side of it.
void expect_stationary(const StepTable& table, const StepTarget& target) {
  for (std::size_t i = 0; i < table.borders.size(); ++i) {
    const double middle = (table.levels[i] + table.levels[i + 1]) / 2, at = table.borders[i];
    const double below = target.derivative(std::nextafter(at, -1e9)) - middle;
    const double above = target.derivative(std::nextafter(at, 1e9)) - middle;
    if (below * above < 0 && std::abs(below - above) > 1e-6) continue;
    EXPECT_NEAR(target.derivative(at), middle, 1e-11) << "border " << i << " at " << at;
  }
}

struct Measure {
  std::string name;
  double half_width;
  StepWeight kind;
  Function weight;
};

std::vector<Measure> golden_measures() {
  const Function one = [](double) { return 1.0; };
  return {{"uniform_[-10,10]", 10, StepWeight::kUniform, one},
          {"normal", 10, StepWeight::kNormal, normal_density},
          {"uniform_[-100,100]", 100, StepWeight::kUniform, one},
          {"uniform_[-10,10]_even", 10, StepWeight::kUniform, one},
          {"normal_even", 10, StepWeight::kNormal, normal_density}};
}

// Every activation, measure and width of the reference file. The derivatives that are even are
// there twice, folded and not; unfolded means a target that does not say it is even.
TEST(Steps, GoldenErrorsTrueErrorsAndStationarity) {
  const auto activations = golden("fewbit.json").at("activations");
  int num_cases = 0;
  for (const auto& [name, measures] : activations.items()) {
    for (const Measure& measure : golden_measures()) {
      if (!measures.contains(measure.name)) continue;
      StepTarget target = activation_target(name);
      const bool even = measure.name.ends_with("_even");
      ASSERT_TRUE(target.even || !even) << name;
      target.even = even;
      for (const auto& [bits_text, expected] : measures.at(measure.name).items()) {
        const int bits = std::stoi(bits_text);
        if (bits == 0) continue;
        SCOPED_TRACE(name + " " + measure.name + " " + bits_text);
        const double end = measure.half_width;
        const StepTable table = optimal_steps(target, bits, -end, end, measure.kind);
        const double error = expected.at(even ? "error_two_sided" : "error").template get<double>();
        EXPECT_NEAR(table.error, error, 1e-9 * error + 1e-25);
        EXPECT_EQ(table.even, even);
        expect_well_formed(table, bits);
        expect_stationary(table, target);
        EXPECT_NEAR(integrate_error(table, target, -end, end, measure.weight), table.error,
                    1e-9 * table.error + 1e-25);
        ++num_cases;
      }
    }
  }
  EXPECT_EQ(num_cases, 242);
}

TEST(Steps, UniqueOptimaHaveTheGoldenBorders) {
  const auto activations = golden("fewbit.json").at("activations");
  for (const char* name : {"softplus", "elu", "selu", "hardswish"}) {
    const auto& expected = activations.at(name).at("normal").at("3");
    if (expected.value("mirror_twin_equally_optimal", false)) continue;
    const StepTable table = optimal_steps(name, 3, -10, 10, StepWeight::kNormal);
    const auto borders = expected.at("borders").get<std::vector<double>>();
    const auto levels = expected.at("levels").get<std::vector<double>>();
    for (std::size_t i = 0; i < 7; ++i) EXPECT_NEAR(table.borders[i], borders[i + 1], 1e-9) << name;
    for (std::size_t i = 0; i < 8; ++i) EXPECT_NEAR(table.levels[i], levels[i], 1e-10) << name;
  }
}

TEST(Steps, PublishedErrors) {
  // Errors for 1 to 4 bits on -10 .. 10, as in the method's table.
  const auto expect = [](const char* name, std::array<double, 4> errors) {
    for (int bits = 1; bits <= 4; ++bits)
      EXPECT_NEAR(optimal_steps(name, bits).error, errors[bits - 1], 6e-7) << name << bits;
  };
  expect("gelu", {.141047, .040563, .011898, .003140});
  expect("silu", {.214978, .047849, .017018, .004464});
  expect("sigmoid", {.018074, .003783, .000878, .000212});
  expect("tanh", {.158400, .031910, .007264, .001739});
  expect("selu", {.255348, .101005, .018380, .003909});
  expect("softplus", {.290216, .054050, .012117, .002896});
}

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
      const StepTable table = optimal_steps(target, bits, -4, 6, StepWeight::kNormal);
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
    const StepTable table = optimal_steps(target, 2, low, high, normal_density);
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
        const StepTable table = optimal_steps(name, bits, -10, 10, weight);
        SCOPED_TRACE(name);
        expect_well_formed(table, bits);
        EXPECT_LT(table.error, 1e-28);
        for (double x = -9.987; x < 10; x += 0.0213)
          EXPECT_NEAR(level_at(table, x), target.derivative(x), 1e-15) << x;
      }
  }
  const StepTable relu = optimal_steps("relu", 1);
  EXPECT_THAT(relu.borders, testing::ElementsAre(0));
  EXPECT_THAT(relu.levels, testing::ElementsAre(0, 1));
  EXPECT_EQ(level_at(relu, 0), 0);  // as torch has it
  EXPECT_THAT(optimal_steps("relu", 2).borders, testing::ElementsAre(-5, 0, 5));
  EXPECT_THAT(optimal_steps("hardsigmoid", 1).borders, testing::ElementsAre(3));
  // Three pieces in one bit: not exact, the best two. Left of 6 the error is least with the border
  // at 0: int over 0 .. 10 of a 0/1 function with mean 0.6 is 10 * 0.6 * 0.4.
  EXPECT_NEAR(optimal_steps("relu6", 1).error, 2.4, 1e-12);
  // An interval without the jump: a constant.
  const StepTable constant = optimal_steps("relu", 2, 1, 5);
  EXPECT_THAT(constant.levels, testing::Each(1));
  EXPECT_THAT(constant.borders, testing::ElementsAre(2, 3, 4));
}

TEST(Steps, FoldingCountsBothSides) {
  // The folded table over -10 .. 10 is the plain one over 0 .. 10, with twice the error.
  StepTarget target = activation_target("tanh");
  const StepTable folded = optimal_steps(target, 3, -10, 10);
  target.even = false;
  const StepTable half = optimal_steps(target, 3, 0, 10);
  EXPECT_TRUE(folded.even);
  EXPECT_FALSE(half.even);
  EXPECT_NEAR(folded.error, 2 * half.error, 1e-12 * half.error);
  for (std::size_t i = 0; i < 7; ++i) EXPECT_NEAR(folded.borders[i], half.borders[i], 1e-9);
  // Twice as many pieces on the half line: better than the unfolded table.
  EXPECT_LT(folded.error, optimal_steps(target, 3, -10, 10).error);
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
        const StepTable table = optimal_steps(target, bits, low, high, lopsided);
        EXPECT_TRUE(table.even);
        expect_well_formed(table, bits);
        EXPECT_NEAR(integrate_error(table, target, low, high, lopsided), table.error,
                    1e-9 * table.error + 1e-25);
      }
  }
  // Mirrored interval and weight: the same table.
  const auto mirrored = [&](double x) { return lopsided(-x); };
  const StepTable a = optimal_steps(activation_target("tanh"), 2, -2, 5, lopsided);
  const StepTable b = optimal_steps(activation_target("tanh"), 2, -5, 2, mirrored);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(a.borders[i], b.borders[i], 1e-9);
}

TEST(Steps, LineUnderUniformWeight) {
  // f' = x on 0 .. 1 in n pieces: equal ones, error 1 / (12 n^2).
  const StepTarget target{[](double x) { return x; }, {}, false};
  for (int bits = 1; bits <= 5; ++bits) {
    const int n = 1 << bits;
    const StepTable table = optimal_steps(target, bits, 0, 1, [](double) { return 1.0; });
    EXPECT_NEAR(table.error, 1.0 / (12 * n * n), 1e-14);
    for (int i = 0; i < n; ++i) EXPECT_NEAR(table.levels[i], (i + 0.5) / n, 1e-12);
    for (int i = 1; i < n; ++i) EXPECT_NEAR(table.borders[i - 1], 1.0 * i / n, 1e-12);
  }
  // The same, tiny and shifted: nothing assumes a scale.
  const StepTable tiny = optimal_steps(target, 2, 3, 3 + 1e-6);
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
    EXPECT_NEAR(optimal_steps(target, bits, -30, 30, StepWeight::kNormal).error, errors[bits - 1],
                1e-11);
}

TEST(Steps, WeightsWithTailsGapsAndManyBreaks) {
  // Far tails: the mass beyond 10 is 1e-23, beyond 40 it is zero in double precision.
  for (const char* name : {"gelu", "silu", "hardswish", "tanh"}) {
    const double expected = optimal_steps(name, 4, -10, 10, StepWeight::kNormal).error;
    for (const double end : {40.0, 100.0, 3000.0})
      EXPECT_NEAR(optimal_steps(name, 4, -end, end, StepWeight::kNormal).error, expected,
                  1e-9 * expected)
          << name << ' ' << end;
  }
  // A gap without weight.
  StepTarget gap = activation_target("silu");
  gap.breaks.insert(gap.breaks.end(), {-1, 1});
  const Function outside = [](double x) { return std::abs(x) > 1 ? 1.0 : 0.0; };
  const StepTable table = optimal_steps(gap, 3, -5, 5, outside);
  expect_well_formed(table, 3);
  EXPECT_NEAR(integrate_error(table, gap, -5, 5, outside), table.error, 1e-9 * table.error);
  // A histogram: 1000 bins of the normal density, close to the density itself.
  StepTarget binned = activation_target("gelu");
  for (int i = -500; i <= 500; ++i) binned.breaks.push_back(i / 100.0);
  const Function histogram = [](double x) {
    return normal_density((std::floor(x * 100) + 0.5) / 100);
  };
  const double expected = optimal_steps("gelu", 3, -5, 5, StepWeight::kNormal).error;
  const StepTable from_bins = optimal_steps(binned, 3, -5, 5, histogram);
  expect_well_formed(from_bins, 3);
  EXPECT_NEAR(from_bins.error, expected, 1e-3 * expected);
}

TEST(Steps, MoreBitsAndScaling) {
  for (const char* name : {"gelu", "mish", "quick_gelu", "selu"}) {
    double before = std::numeric_limits<double>::infinity();
    for (int bits = 1; bits <= 5; ++bits) {
      const double error = optimal_steps(name, bits).error;
      EXPECT_LT(error, before);
      before = error;
    }
  }
  // The error is linear in the weight, quadratic in the target; borders do not change.
  const StepTarget target = activation_target("gelu");
  const StepTarget scaled{[&](double x) { return -1e3 * target.derivative(x); }, {0.0}, false};
  const StepTable plain = optimal_steps(target, 3, -7, 9, normal_density);
  const StepTable other =
      optimal_steps(scaled, 3, -7, 9, [](double x) { return 1e-9 * normal_density(x); });
  EXPECT_NEAR(other.error, 1e-3 * plain.error, 1e-12 * plain.error);
  for (std::size_t i = 0; i < 7; ++i) EXPECT_NEAR(other.borders[i], plain.borders[i], 1e-9);
}

TEST(Steps, UndeclaredJumpIsFoundAnyway) {
  const StepTarget target{[](double x) { return x > 0.3 ? 1.0 : 0.0; }, {}, false};
  const StepTable table = optimal_steps(target, 1, -10, 10);
  EXPECT_NEAR(table.borders[0], 0.3, 1e-9);
  EXPECT_LT(table.error, 1e-9);
  expect_well_formed(optimal_steps(target, 5, -10, 10), 5);
}

TEST(Steps, RefusesBadArguments) {
  const double inf = std::numeric_limits<double>::infinity();
  for (const int bits : {-1, 0, 6, 64}) EXPECT_THROW(optimal_steps("gelu", bits), InvalidArgument);
  const std::pair<double, double> intervals[] = {{1, 1},    {2, 1},   {NAN, 1},           {0, NAN},
                                                 {-inf, 1}, {0, inf}, {-1.5e308, 1.5e308}};
  for (const auto& [low, high] : intervals)
    EXPECT_THROW(optimal_steps("gelu", 3, low, high), InvalidArgument) << low << ' ' << high;
  EXPECT_THROW(optimal_steps("nonsense", 3), InvalidArgument);
  EXPECT_THROW(parse_step_weight("gaussian"), InvalidArgument);
  EXPECT_EQ(parse_step_weight("normal"), StepWeight::kNormal);
  EXPECT_EQ(parse_step_weight("uniform"), StepWeight::kUniform);

  const StepTarget gelu = activation_target("gelu");
  const Function one = [](double) { return 1.0; };
  for (const double bad : {std::nan(""), inf, -1.0}) {
    const Function weight = [=](double x) { return x > 3 ? bad : 1.0; };
    EXPECT_THROW(optimal_steps(gelu, 3, -5, 5, weight), InvalidArgument) << bad;
  }
  EXPECT_THROW(optimal_steps(gelu, 3, -5, 5, [](double) { return 0.0; }), InvalidArgument);
  EXPECT_THROW(optimal_steps("gelu", 3, 50, 60, StepWeight::kNormal), InvalidArgument);
  EXPECT_THROW(optimal_steps(gelu, 3, -5, 5, Function()), InvalidArgument);
  EXPECT_THROW(optimal_steps(StepTarget{}, 3, -5, 5, one), InvalidArgument);
  EXPECT_THROW(optimal_steps({[](double x) { return std::log(x); }, {}, false}, 3, -5, 5, one),
               InvalidArgument);
  EXPECT_THROW(optimal_steps({gelu.derivative, {NAN}, false}, 3, -5, 5, one), InvalidArgument);
  EXPECT_THROW(optimal_steps({gelu.derivative, {}, true}, 3, -5, 5, one), InvalidArgument);
  try {
    optimal_steps("gelu", 6);
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(), "[optimal_steps] expected 1 to 5 bits, got 6");
  }
}

}  // namespace
}  // namespace slimgrad
