#include "math/normal.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace slimgrad {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Recipe: mpmath with 60 digits; npdf(t), ncdf(t), ncdf(-t) / npdf(t), the last from t = 1000 on as
// quad(lambda u: exp(-t*u - u*u/2), [0, 1/t, 5/t, 40/t, 200/t]). What is below the smallest normal
// double is entered as 0.
struct Point {
  double t, density, cdf, mills;
};
constexpr Point kPoints[] = {
    {-37.5, 1.72823373228410522e-306, 4.60535300958195484e-308, 5.78625437821051332e+305},
    {-30.1, 7.30025938428061072e-198, 2.42266721798575877e-199, 1.36981434132774034e+197},
    {-8.3, 4.38163943550933272e-16, 5.20556974489025402e-17, 2282250775579295.12},
    {-3.01, 0.00430065245873044909, 0.00130623844876946867, 232.219127477704752},
    {-2.99, 0.00456658995467014397, 0.00139488723549224949, 218.676325809208647},
    {-1.7, 0.0940490773768869303, 0.0445654627585430437, 10.1588932490289391},
    {-0.3, 0.381387815460524087, 0.382088577811047367, 1.6201656087067893},
    {0.0, 0.398942280401432678, 0.5, 1.25331413731550025},
    {1e-09, 0.398942280401432678, 0.50000000039894228, 1.25331413631550025},
    {0.7, 0.312253933366761267, 0.758036347776926971, 0.774893848779390647},
    {1.9, 0.0656158147746766023, 0.971283440183998195, 0.437646928787120882},
    {2.99, 0.00456658995467014397, 0.998605112764507751, 0.305454890703670728},
    {3.01, 0.00430065245873044909, 0.998693761551230531, 0.303730297043130461},
    {4.4, 0.0000249424712900535299, 0.999994587456092296, 0.217001108060300585},
    {7.7, 5.32414837225295248e-14, 0.999999999999993197, 0.127782155287589968},
    {12.3, 5.60665692630384046e-34, 1.0, 0.080773748343905024},
    {26.6, 9.04082906448800662e-155, 1.0, 0.0375410767924587246},
    {38.1, 0, 1.0, 0.0262286752903499621},
    {1000.0, 0, 1.0, 0.000999999000002999985},
    {100000000.0, 0, 1.0, 9.999999999999999e-9},
};

void expect_close(double actual, double expected, double tolerance) {
  EXPECT_NEAR(actual, expected, tolerance * std::abs(expected) + 1e-315);
}

TEST(Normal, DensityCdfAndMillsRatioMatchMpmath) {
  for (const Point& point : kPoints) {
    SCOPED_TRACE(point.t);
    expect_close(normal_density(point.t), point.density, 1e-15);
    expect_close(normal_cdf(point.t), point.cdf, 2e-15);
    expect_close(mills_ratio(point.t), point.mills, 2e-15);
  }
}

TEST(Normal, QuantileMatchesMpmath) {
  // Recipe: -sqrt(2) erfinv(1 - 2p), below 1e-10 findroot(lambda t: log(ncdf(t)) - log(p)).
  constexpr double kQuantiles[][2] = {
      {1e-300, -37.0470962993611992},       {3.3e-45, -14.0609438994172434},
      {1e-17, -8.49379322410959807},        {1e-05, -4.26489079392282461},
      {0.0213, -2.02761066171099513},       {0.25, -0.674489750196081743},
      {0.49999, -0.0000250662827489600085}, {0.5, 0.0},
      {0.75, 0.674489750196081743},         {0.9, 1.28155156554460059},
      {0.999999, 4.75342430881708777},
  };
  for (const auto& [p, quantile] : kQuantiles) {
    SCOPED_TRACE(p);
    expect_close(normal_quantile(p), quantile, 1e-15);
  }
}

TEST(Normal, QuantileInvertsCdfOnBothSides) {
  for (double t = -37; t < 5; t += 0.37) {
    // Phi^-1 magnifies an error of Phi by Mills(-t): on the right side little of t is left in it.
    const double ulp = std::numeric_limits<double>::epsilon();
    EXPECT_NEAR(normal_quantile(normal_cdf(t)), t, 8 * ulp * (1 + std::abs(t) + mills_ratio(-t)));
  }
}

TEST(Normal, EndsAndNan) {
  EXPECT_EQ(normal_density(kInfinity), 0);
  EXPECT_EQ(normal_density(-1e300), 0);
  EXPECT_EQ(normal_cdf(kInfinity), 1);
  EXPECT_EQ(normal_cdf(-kInfinity), 0);
  EXPECT_EQ(normal_quantile(0), -kInfinity);
  EXPECT_EQ(normal_quantile(1), kInfinity);
  EXPECT_EQ(mills_ratio(kInfinity), 0);
  EXPECT_EQ(mills_ratio(-kInfinity), kInfinity);
  EXPECT_EQ(mills_ratio(-1e200), kInfinity);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(std::isnan(normal_density(nan)));
  EXPECT_TRUE(std::isnan(normal_cdf(nan)));
  EXPECT_TRUE(std::isnan(normal_quantile(nan)));
  EXPECT_TRUE(std::isnan(mills_ratio(nan)));
}

TEST(Normal, NothingJumpsWhereTheFormulaChanges) {
  for (const double border : {-3.0, 3.0}) {
    const double next = std::nextafter(border, 10.0);
    expect_close(normal_cdf(next), normal_cdf(border), 3e-15);
    expect_close(mills_ratio(next), mills_ratio(border), 3e-15);
  }
}

}  // namespace
}  // namespace slimgrad
