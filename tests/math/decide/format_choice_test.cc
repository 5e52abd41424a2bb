#include <slimgrad/format_choice.h>

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include <slimgrad/error.h>
#include <slimgrad/threshold.h>

#include "golden.h"
#include "math/decide/grid_error.h"
#include "stats_of.h"

namespace slimgrad {
namespace {

// Rounding by looking at every grid value: the oracle.
double nearest(const FloatFormat& format, double x, double scale) {
  const double magnitude = std::abs(x) / scale;
  if (magnitude < format.smallest()) return 0;
  double best = format.smallest();
  for (const double v : format.values())
    if (v > 0 && std::abs(v - magnitude) < std::abs(best - magnitude)) best = v;
  return std::copysign(best * scale, x);
}

TEST(RelativeError, Golden) {
  const auto file = golden("fp_format.json");
  int compared = 0;
  for (const auto& row : file["rows"]) {
    const double sigma = row["sigma"];
    for (const auto& format : row["formats"]) {
      const FloatFormat f(format["n2"], format["n1"]);
      SCOPED_TRACE(testing::Message() << f.name() << " sigma " << sigma);
      EXPECT_NEAR(relative_error(f, sigma) / format["rtn_R"]["mean_abs"].get<double>(), 1, 1e-10);
      EXPECT_NEAR(relative_error_closed_form(f, sigma) / format["eq4_corrected"].get<double>(), 1,
                  1e-10);
      ++compared;
    }
    EXPECT_EQ(best_format(row["N"], sigma).exponent_bits(), row["argmin_n2"]["rtn_R_mean_abs"])
        << row["N"] << " bits, sigma " << sigma;
  }
  EXPECT_GT(compared, 300);
}

TEST(RelativeError, MonteCarlo) {
  std::mt19937_64 engine(5);
  std::normal_distribution<double> normal;
  for (const char* name : {"1-1-2", "1-3-0", "1-4-1", "1-5-2"}) {
    const FloatFormat format = FloatFormat::parse(name);
    for (const double sigma : {0.7, 3.0}) {
      double sum = 0, square = 0;
      const int n = 40000;
      for (int i = 0; i < n; ++i) {
        const double x = std::exp2(sigma * normal(engine));
        const double e = std::abs(nearest(format, x, 1) - x) / x;
        sum += e;
        square += e * e;
      }
      const double mean = sum / n, se = std::sqrt((square / n - mean * mean) / n);
      EXPECT_NEAR(relative_error(format, sigma), mean, 4 * se) << name << ' ' << sigma;
    }
  }
}

TEST(BestFormat, ReproducesEveryCellOfTable2) {
  const auto printed = golden("fp_format.json")["table2"]["printed"];
  for (int bits = 4; bits <= 8; ++bits) {
    EXPECT_EQ(best_format(bits, 2.5, 4.5).name(), printed["cifar100 2.5-4.5"][bits - 4]);
    EXPECT_EQ(best_format(bits, 3.0, 5.5).name(), printed["imagenet 3-5.5"][bits - 4]);
  }
}

TEST(BestFormat, ChangesAtTheGoldenCrossovers) {
  const auto crossovers = golden("fp_format.json")["crossover_sigma"]["rtn_R"];
  for (const auto& [bits, rows] : crossovers.items())
    for (const auto& row : rows) {
      const double sigma = row["sigma"];
      EXPECT_EQ(best_format(std::stoi(bits), sigma * (1 - 1e-6)).exponent_bits(), row["from_n2"]);
      EXPECT_EQ(best_format(std::stoi(bits), sigma * (1 + 1e-6)).exponent_bits(), row["to_n2"]);
    }
}

std::vector<float> lognormal_tensor(double sigma, int n) {
  std::mt19937_64 engine(17);
  std::normal_distribution<double> normal;
  std::vector<float> tensor;
  for (int i = 0; i < n; ++i)
    tensor.push_back(static_cast<float>((i % 2 ? 1 : -1) * std::exp(sigma * normal(engine) - 4)));
  return tensor;
}

// Log-uniform inside every bin, as the closed forms assume, with other counts from bin to bin.
std::vector<float> log_uniform_by_bin(int first_bin, int last_bin) {
  std::vector<float> tensor;
  for (int bin = first_bin; bin <= last_bin; ++bin) {
    const double low = LogHistogram::lower_edge(bin), high = LogHistogram::lower_edge(bin + 1);
    const int n = 300 + 83 * (bin % 7);
    for (int i = 0; i < n; ++i)
      tensor.push_back(static_cast<float>(low * std::pow(high / low, (i + 0.5) / n)));
  }
  return tensor;
}

TEST(HistogramGridError, MatchesBruteForce) {
  const auto tensor = log_uniform_by_bin(LogHistogram::bin_of(1e-3f), LogHistogram::bin_of(30.f));
  const TensorStats stats = stats_of(tensor);
  for (const char* name : {"1-2-1", "1-3-0", "1-3-2", "1-4-3", "1-1-6", "1-5-2"}) {
    const FloatFormat format = FloatFormat::parse(name);
    for (const int exponent : {-40, -12, -8, -4, 0, 3}) {
      double squared = 0, relative = 0;
      for (const double x : tensor) {
        const double e = nearest(format, x, std::ldexp(1.0, exponent)) - x;
        squared += e * e;
        relative += std::abs(e / x);
      }
      const HistogramGridError of_square(format, stats.histogram, ErrorKind::kSquared);
      const HistogramGridError of_relative(format, stats.histogram, ErrorKind::kRelative);
      EXPECT_NEAR(of_square.at(exponent) / squared, 1, 1e-3) << name << ' ' << exponent;
      EXPECT_NEAR(of_relative.at(exponent) / relative, 1, 1e-3) << name << ' ' << exponent;
    }
  }
}

// The expectation over the draws of the error of one value, straight from apply.h.
double expected_error_of(const Quantizer& quantizer, const std::vector<double>& grid, double x,
                         bool squared) {
  const double y = x / quantizer.scale;
  const auto above = std::upper_bound(grid.begin(), grid.end(), y);
  const auto error = [&](double v) {
    return squared ? std::pow((v - y) * quantizer.scale, 2) : std::abs(v / y - 1);
  };
  if (above == grid.end()) return error(grid.back());
  const double l = *(above - 1), u = *above;
  const bool underflows = l == 0;
  if (underflows ? quantizer.underflow == Underflow::kZero
                 : quantizer.rounding == Rounding::kNearest)
    return error(!underflows && y > (l + u) / 2 ? u : l);
  const double up = (y - l) / (u - l);
  return up * error(u) + (1 - up) * error(l);
}

TEST(ExpectedError, MatchesBruteForce) {
  const auto tensor = log_uniform_by_bin(LogHistogram::bin_of(1e-3f), LogHistogram::bin_of(30.f));
  const TensorStats stats = stats_of(tensor);
  const auto count = static_cast<double>(tensor.size());
  for (const char* name : {"1-1-6", "1-2-1", "1-3-0", "1-3-4", "1-4-3", "1-7-0"})
    for (const double scale : {0x1p-4, 0.0123, 31.0})
      for (const auto rounding : {Rounding::kNearest, Rounding::kStochastic})
        for (const auto underflow : {Underflow::kZero, Underflow::kStochastic}) {
          const Quantizer quantizer = {FloatFormat::parse(name), scale, rounding, underflow};
          const std::vector<double> grid = quantizer.format.values();
          double squared = 0, relative = 0;
          for (const double x : tensor) {
            squared += expected_error_of(quantizer, grid, x, true);
            relative += expected_error_of(quantizer, grid, x, false);
          }
          SCOPED_TRACE(testing::Message()
                       << name << " at " << scale << ", rounding " << static_cast<int>(rounding));
          EXPECT_NEAR(expected_error(stats, quantizer) / (relative / count), 1, 2e-3);
          EXPECT_NEAR(expected_error(stats, quantizer, ErrorMeasure::kSquared) /
                          (squared / count / stats.mean_square),
                      1, 2e-3);
        }
}

// The gradient of a softmax: a great many small values, and for each row one that is a thousand
// times as large. The deviation says little of it.
TensorStats softmax_gradient() {
  std::mt19937_64 engine(3);
  std::normal_distribution<double> normal;
  std::vector<float> tensor;
  for (int row = 0; row < 40; ++row)
    for (int i = 0; i < 1500; ++i)
      tensor.push_back(i == 0 ? -1.f : static_cast<float>(std::exp(0.6 * normal(engine)) / 1500));
  return stats_of(tensor);
}

TEST(BestFormat, OfASoftmaxReachesItsManySmallValues) {
  const TensorStats stats = softmax_gradient();
  for (const int bits : {4, 5, 6, 7, 8}) {
    const auto error_of = [&](const SplitOptions& options) {
      const FloatFormat format = best_format(bits, stats, options);
      return expected_error(
          stats, {format, stats.max_abs / format.largest(), options.rounding, options.underflow});
    };
    for (const auto rounding : {Rounding::kNearest, Rounding::kStochastic}) {
      SplitOptions options;
      options.rounding = rounding;
      const double empirical = error_of(options);
      // No other split does better: that is what it says.
      for (int exponent_bits = 1; exponent_bits < bits; ++exponent_bits) {
        const FloatFormat other(exponent_bits, bits - 1 - exponent_bits);
        EXPECT_LE(empirical, expected_error(stats, {other, stats.max_abs / other.largest(),
                                                    rounding, options.underflow}));
      }
      options.method = SplitMethod::kLognormal;
      if (bits >= 6) {
        EXPECT_LT(empirical, 0.2 * error_of(options)) << bits;
      }
    }
  }
  EXPECT_EQ(best_format(8, stats).name(), "1-4-3");
  EXPECT_EQ(best_format(6, stats).name(), "1-4-1");
}

TEST(BestFormat, OfANormalMatchesQuadratureAndHasFewerExponentsForWiderOnes) {
  // Midpoint rule, against the closed form with exponential integrals.
  for (const double std : {0.3, 1.0, 5.0})
    for (const char* name : {"1-2-3", "1-4-1", "1-5-0"}) {
      const FloatFormat format = FloatFormat::parse(name);
      double sum = 0;
      const int steps = 400000;
      for (int i = 0; i < steps; ++i) {
        const double x = 8 * std * (i + 0.5) / steps;
        sum += std::abs(nearest(format, x, 1.0) / x - 1) * std::exp(-x * x / (2 * std * std));
      }
      const double density = 2 / (std * std::sqrt(2 * std::numbers::pi));
      EXPECT_NEAR(relative_error_of_normal(format, std), sum * density * 8 * std / steps, 1e-5)
          << name << ' ' << std;
    }
  int before = 8;
  for (const double std : {1.0, 3.0, 5.0, 8.0}) {
    const int exponent_bits = best_format_of_normal(8, std).exponent_bits();
    EXPECT_LE(exponent_bits, before) << std;
    before = exponent_bits;
  }
}

TEST(GradientScale, Max) {
  const TensorStats stats = stats_of({0.5f, -3.f, 0.f, 1e-3f});
  const FloatFormat format(4, 1);
  EXPECT_DOUBLE_EQ(gradient_scale(stats, format, ScaleMethod::kMax) * format.largest(), 3);
}

TEST(GradientScale, PredictedIsNearTheMaximumOfALognormal) {
  // ln max of n standard normals is 4.2 +- 0.3 at n = 50,000 (times sigma).
  const TensorStats stats = stats_of(lognormal_tensor(1.5, 50000));
  const FloatFormat format(5, 2);
  const double ratio = gradient_scale(stats, format, ScaleMethod::kPredicted) /
                       gradient_scale(stats, format, ScaleMethod::kMax);
  EXPECT_LT(std::abs(std::log(ratio)), 1.5 * 1.0);
}

TEST(GradientScale, ErrorIsTheBestPowerOfTwo) {
  for (const double sigma : {0.5, 2.0, 3.5}) {
    const auto tensor = lognormal_tensor(sigma, 30000);
    for (const char* name : {"1-2-1", "1-3-0", "1-4-1", "1-2-3"}) {
      const FloatFormat format = FloatFormat::parse(name);
      const double scale = gradient_scale(stats_of(tensor), format, ScaleMethod::kError);
      EXPECT_EQ(scale, std::exp2(std::round(std::log2(scale))));
      const auto squared_error = [&](double s) {
        double sum = 0;
        for (const double x : tensor) sum += std::pow(nearest(format, x, s) - x, 2);
        return sum;
      };
      const double reached = squared_error(scale);
      for (int shift = -6; shift <= 6; ++shift)
        EXPECT_LE(reached, squared_error(std::ldexp(scale, shift)) * 1.03)
            << name << " sigma " << sigma << " shift " << shift;
    }
  }
}

TEST(BestFormat, OfAHistogramKnowsWhereTheTopWillBe) {
  // The closed form centres the grid: 1-4-1 is best at three octaves. With its top at the maximum,
  // four deviations up, that grid would end at the median, and half of the values underflow.
  const TensorStats stats = stats_of(lognormal_tensor(3.0 * std::log(2.0), 50000));
  EXPECT_EQ(best_format(6, stats, {.method = SplitMethod::kLognormal}).name(), "1-4-1");
  EXPECT_EQ(best_format(6, stats).name(), "1-5-0");
}

TEST(FormatChoice, EdgesAndErrors) {
  EXPECT_EQ(gradient_scale(stats_of({0, 0}), FloatFormat(4, 1), ScaleMethod::kMax), 1);
  EXPECT_EQ(gradient_scale(TensorStats{}, FloatFormat(4, 1), ScaleMethod::kError), 1);
  // The extremes of float32 keep a usable scale.
  for (const float x : {1e-45f, 1e-38f, 3e38f})
    for (const auto method : {ScaleMethod::kMax, ScaleMethod::kError}) {
      const double scale = gradient_scale(stats_of({x}), FloatFormat(5, 2), method);
      EXPECT_TRUE(std::isfinite(scale) && scale > 0) << x;
    }
  EXPECT_EQ(best_format(2, 1.0).name(), "1-1-0");
  EXPECT_THROW(best_format(1, 1.0), InvalidArgument);
  EXPECT_THROW(best_format(9, 1.0), InvalidArgument);
  EXPECT_THROW(best_format(8, 0.0), InvalidArgument);
  EXPECT_THROW(best_format(8, 3.0, 2.0), InvalidArgument);
  EXPECT_THROW(best_format(8, TensorStats{}), InvalidArgument);
  EXPECT_THROW(relative_error(FloatFormat(5, 2), std::nan("")), InvalidArgument);
  EXPECT_THROW(parse_scale_method("largest"), InvalidArgument);
  EXPECT_THROW(gradient_scale(lognormal_stats(0, 1, 0), FloatFormat(5, 2), ScaleMethod::kMax),
               InvalidArgument);
}

}  // namespace
}  // namespace slimgrad
