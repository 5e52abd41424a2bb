#include <slimgrad/distribution.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <slimgrad/error.h>

#include "golden.h"

namespace slimgrad {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A row of the golden file, which says how it was made.
struct Point {
  Family family;
  std::vector<double> params;
  double x, density, cdf, upper, magnitude;
};

std::vector<Point> golden_points() {
  std::vector<Point> points;
  for (const auto& row : golden("distribution.json")["points"])
    points.push_back(
        {parse_family(row[0].get<std::string>()), row[1], row[2], row[3], row[4], row[5], row[6]});
  return points;
}

std::string describe(const Point& point) {
  return std::string(family_name(point.family)) + " at " + std::to_string(point.x);
}

double relative(double actual, double expected) {
  return expected == 0 ? std::abs(actual) : std::abs(actual / expected - 1);
}

TEST(Distribution, DensityAndCdfMatchMpmathInTheTailsToo) {
  for (const Point& point : golden_points()) {
    SCOPED_TRACE(describe(point));
    const Distribution law(point.family, point.params);
    EXPECT_LT(relative(law.density(point.x), point.density), 1e-13);
    EXPECT_LT(relative(law.cdf(point.x), point.cdf), 1e-13);
    EXPECT_LT(relative(law.cdf_of_magnitude(std::abs(point.x)), point.magnitude), 1e-13);
    if (is_symmetric(point.family)) {
      EXPECT_LT(relative(law.density(-point.x), point.density), 1e-13);
      EXPECT_LT(relative(law.cdf(-point.x), point.upper), 1e-13);
      EXPECT_EQ(law.cdf_of_magnitude(-1), 0);
    }
  }
}

TEST(Distribution, QuantileInvertsMpmathsCdf) {
  for (const Point& point : golden_points()) {
    SCOPED_TRACE(describe(point));
    const Distribution law(point.family, point.params);
    // From the smaller tail, which has all the digits; of 1 - p few are left.
    const bool mirrored = point.upper < point.cdf && is_symmetric(point.family);
    const double p = mirrored ? point.upper : point.cdf;
    if (p == 0 || p > 0.999) continue;  // outside the support, or in a tail without a mirror
    const double x = mirrored ? -point.x : point.x;
    // An ulp of p moves x by p / (x f(x)) ulp: near the centre that is much.
    const double condition = p / (std::abs(x) * point.density);
    EXPECT_LT(relative(law.quantile(p), x), 1e-13 + 4e-16 * condition);
  }
}

TEST(Distribution, QuantileAtTheEndsAndTheCentre) {
  for (const Family family : kAllFamilies) {
    SCOPED_TRACE(family_name(family));
    const std::vector<double> params(parameter_names(family).size(), 0.75);
    const Distribution law(family, params);
    if (family == Family::kUniform) {
      EXPECT_EQ(law.quantile(0), -0.75);
      EXPECT_EQ(law.quantile(1), 0.75);
    } else {
      EXPECT_EQ(law.quantile(0), is_symmetric(family) ? -kInfinity : 0);
      EXPECT_EQ(law.quantile(1), kInfinity);
    }
    EXPECT_NEAR(law.quantile(0.5), is_symmetric(family) ? 0 : std::exp(0.75), 1e-15);
    EXPECT_EQ(law.cdf(-kInfinity), 0);
    EXPECT_EQ(law.cdf(kInfinity), 1);
    EXPECT_EQ(law.cdf_of_magnitude(kInfinity), 1);
    EXPECT_EQ(law.density(kInfinity), 0);
    EXPECT_EQ(law.cdf_of_magnitude(0), 0);
    const double nan = std::numeric_limits<double>::quiet_NaN();
    EXPECT_TRUE(std::isnan(law.cdf(nan)));
    EXPECT_TRUE(std::isnan(law.density(nan)));
    for (const double p : {-0.1, 1.1, nan}) EXPECT_THROW(law.quantile(p), InvalidArgument);
  }
}

TEST(Distribution, QuantileOfCdfIsTheIdentityAlongTheWholeLine) {
  for (const Family family : kAllFamilies) {
    SCOPED_TRACE(family_name(family));
    for (double p = 1e-12; p < 1; p = p < 0.5 ? p * 1.7 : 1 - (1 - p) / 1.7) {
      if (1 - p < 1e-6) break;
      const std::vector<double> params(parameter_names(family).size(), 0.75);
      const Distribution law(family, params);
      // Close to the end of the uniform's support the ulp of x counts.
      const double ulp = family == Family::kUniform ? 1.2e-16 : 0;
      EXPECT_NEAR(law.cdf(law.quantile(p)), p, 1e-13 * p + ulp) << p;
    }
  }
}

TEST(Distribution, NamesGoBothWays) {
  for (const Family family : kAllFamilies) EXPECT_EQ(parse_family(family_name(family)), family);
  EXPECT_THROW(parse_family("gaussian"), InvalidArgument);
  EXPECT_THAT(parameter_names(Family::kGennorm), testing::ElementsAre("shape", "scale"));
  EXPECT_THAT(parameter_names(Family::kLognormal), testing::ElementsAre("log_mean", "log_std"));
}

TEST(Distribution, RefusesWrongParameters) {
  EXPECT_THROW(Distribution(Family::kNormal, {}), InvalidArgument);
  EXPECT_THROW(Distribution(Family::kNormal, {1, 2}), InvalidArgument);
  EXPECT_THROW(Distribution(Family::kGennorm, {1}), InvalidArgument);
  for (const double bad : {0.0, -1.0, kInfinity, std::nan("")}) {
    EXPECT_THROW(Distribution(Family::kLaplace, {bad}), InvalidArgument) << bad;
    EXPECT_THROW(Distribution(Family::kGennorm, {bad, 1}), InvalidArgument) << bad;
    EXPECT_THROW(Distribution(Family::kLognormal, {0, bad}), InvalidArgument) << bad;
  }
  EXPECT_NO_THROW(Distribution(Family::kLognormal, {-3, 1}));
  try {
    Distribution(Family::kGennorm, {1, -2});
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(),
                 "[distribution] expected gennorm's scale to be positive and finite, got -2");
  }
}

}  // namespace
}  // namespace slimgrad
