// What a step table is, once more and independently: applied by search, integrated by an adaptive
// rule on the whole axis.
#ifndef SLIMGRAD_TESTS_MATH_STEP_ORACLE_H_
#define SLIMGRAD_TESTS_MATH_STEP_ORACLE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <boost/math/quadrature/gauss_kronrod.hpp>
#include <cmath>
#include <functional>
#include <numbers>
#include <vector>

#include <slimgrad/steps.h>

namespace slimgrad {

using Function = std::function<double(double)>;

inline double normal_density(double x) {
  return std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi);
}

inline double level_at(const StepTable& table, double x) {
  const double at = table.even ? std::abs(x) : x;
  const auto found = std::lower_bound(table.borders.begin(), table.borders.end(), at);
  return table.levels[found - table.borders.begin()];
}

// All places where the error's integrand is not smooth, on the whole axis.
inline std::vector<double> corners(const StepTable& table, const StepTarget& target, double low,
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
inline double integrate_error(const StepTable& table, const StepTarget& target, double low,
                              double high, const Function& weight) {
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

inline void expect_well_formed(const StepTable& table, int bits) {
  const std::size_t num_levels = std::size_t{1} << bits;
  ASSERT_EQ(table.levels.size(), num_levels);
  ASSERT_EQ(table.borders.size(), num_levels - 1);
  for (std::size_t i = 1; i < table.borders.size(); ++i)
    EXPECT_LT(table.borders[i - 1], table.borders[i]);
  EXPECT_GE(table.error, 0);
}

}  // namespace slimgrad

#endif  // SLIMGRAD_TESTS_MATH_STEP_ORACLE_H_
