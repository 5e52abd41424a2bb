#include <slimgrad/measure.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include <slimgrad/error.h>

#include "gennorm_sample.h"
#include "golden.h"

namespace slimgrad {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

Sample sample_of(const std::vector<double>& values) {
  return Sample(std::span<const double>(values));
}
Sample sample_of(const std::vector<float>& values) {
  return Sample(std::span<const float>(values));
}

TEST(Sample, KeepsFiniteNonZerosSorted) {
  const Sample sample = sample_of(std::vector<float>{2, -3, 0, kNan, 1, -0.0f, -1, kInf, -kInf});
  EXPECT_THAT(sample.values(), testing::ElementsAre(-3, -1, 1, 2));
  EXPECT_THAT(sample.magnitudes(), testing::ElementsAre(1, 1, 2, 3));
  EXPECT_THAT(sample_of(std::vector<double>{-2, -5}).magnitudes(), testing::ElementsAre(2, 5));
  EXPECT_THROW(sample_of(std::vector<float>{}), InvalidArgument);
  EXPECT_THROW(sample_of(std::vector<float>{0, kNan, kInf}), InvalidArgument);
}

TEST(Fit, ClosedFormsByHand) {
  const std::vector<float> values = {1, -2, 0, 4, kNan, -8, kInf, 16};
  const double ln2 = std::log(2.0);
  for (const auto& [family, expected] : std::vector<std::pair<Family, std::vector<double>>>{
           {Family::kNormal, {std::sqrt(341 / 5.0)}},
           {Family::kLaplace, {31 / 5.0}},
           {Family::kUniform, {16}},
           {Family::kLognormal, {2 * ln2, ln2 * std::sqrt(2.0)}},
           {Family::kLoglaplace, {2 * ln2, ln2 * 6 / 5}},
           // By the symmetry of ln|x| around ln 4: w(4r) + w(4/r) = 1.
           {Family::kCauchy, {4}}}) {
    SCOPED_TRACE(family_name(family));
    EXPECT_THAT(fit(values, family).params(),
                testing::Pointwise(testing::DoubleNear(1e-14 * 20), expected));
    EXPECT_THAT(fit(sample_of(values), family).params(),
                testing::Pointwise(testing::DoubleNear(1e-14 * 20), expected));
  }
  // An even number of values: the median is between the two in the middle.
  const Distribution even = fit(std::vector<float>{1, -2, 4, 8}, Family::kLoglaplace);
  EXPECT_NEAR(even.params()[0], 1.5 * ln2, 1e-15);
  EXPECT_NEAR(even.params()[1], ln2, 1e-15);
}

TEST(Fit, GoldenGennorm) {
  const nlohmann::json reference_values = golden("gennorm.json");
  for (const auto& reference : reference_values["fits"]) {
    const std::string name = reference["sample"];
    if (name == "beta_0.7" || name == "beta_1.5") continue;  // their samples are not kept here
    SCOPED_TRACE(name);
    const Sample sample = sample_of(golden_sample(name));
    const auto params = fit(sample, Family::kGennorm).params();
    EXPECT_NEAR(params[0] / reference["newton_ml"]["beta"].get<double>(), 1, 1e-12);
    EXPECT_NEAR(params[1] / reference["newton_ml"]["alpha"].get<double>(), 1, 1e-12);
    EXPECT_NEAR(
        fit(sample, Family::kNormal).params()[0] / reference["normal_fit_sigma"].get<double>(), 1,
        1e-13);
    EXPECT_NEAR(
        fit(sample, Family::kLaplace).params()[0] / reference["laplace_fit_b"].get<double>(), 1,
        1e-13);
  }
}

// Standard error of ln shape: the Fisher information of (ln b, ln a) per value, with the scale
// profiled out. With z = (|x|/a)^b of the Gamma(1/b) law the score in ln a is b z - 1 and that in
// ln b is 1 + psi(1/b)/b - z ln z; their covariances follow from moments of z and ln z under Gamma
// laws, here taken by Monte Carlo on the sample itself.
double standard_error_of_log_shape(const std::vector<float>& values, double b, double a) {
  double scale_scale = 0, cross = 0, shape_shape = 0, mean_shape = 0;
  const double n = static_cast<double>(values.size());
  for (const float x : values) {
    if (x == 0) continue;
    const double z = std::pow(std::abs(static_cast<double>(x)) / a, b);
    mean_shape += z * std::log(z) / n;
  }
  for (const float x : values) {
    if (x == 0) continue;
    const double z = std::pow(std::abs(static_cast<double>(x)) / a, b);
    const double in_scale = b * z - 1;
    const double in_shape = mean_shape - z * std::log(z);
    scale_scale += in_scale * in_scale;
    cross += in_scale * in_shape;
    shape_shape += in_shape * in_shape;
  }
  return 1 / std::sqrt(shape_shape - cross * cross / scale_scale);
}

TEST(Fit, RecoversGennormShapesWithinFourStandardErrors) {
  for (const double shape : {0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 4.0, 10.0, 20.0}) {
    for (const std::size_t n : {5000, 200000}) {  // Newton on all, and by way of a subsample
      SCOPED_TRACE(testing::Message() << "shape " << shape << " n " << n);
      const double scale = 1e-3 / std::pow(1 / shape, 1 / shape);
      const std::vector<float> values = generated_sample(shape, scale, n, 11);
      const auto params = fit(values, Family::kGennorm).params();
      const double error = standard_error_of_log_shape(values, shape, scale);
      EXPECT_LT(std::abs(std::log(params[0] / shape)), 4 * error);
      EXPECT_LT(error, n > 10000 ? 0.1 : 0.5);  // else the test would test nothing
    }
  }
}

TEST(Fit, SubsampleDoesNotShowInTheResult) {
  for (const double shape : {0.3, 1.0, 3.0}) {
    std::vector<float> values = generated_sample(shape, 1, 300000, 5);
    const double shuffled = fit(values, Family::kGennorm).params()[0];
    // Sorted by magnitude, and with every fifth value (the subsample's stride) from another law.
    std::sort(values.begin(), values.end());
    EXPECT_NEAR(fit(values, Family::kGennorm).params()[0] / shuffled, 1, 1e-9);
    const std::vector<float> other = generated_sample(0.5, 0.01, 60000, 6);
    for (std::size_t i = 0; i < other.size(); ++i) values[5 * i] = other[i];
    const double adverse = fit(values, Family::kGennorm).params()[0];
    std::mt19937_64 generator(1);
    std::shuffle(values.begin(), values.end(), generator);
    EXPECT_NEAR(fit(values, Family::kGennorm).params()[0] / adverse, 1, 1e-7);
  }
}

TEST(Fit, LikelihoodIsLargestAtTheFit) {
  std::mt19937_64 generator(2);
  std::student_t_distribution<double> student(3);
  std::vector<float> values(2000);
  for (float& x : values) x = static_cast<float>(student(generator));
  const Sample sample = sample_of(values);
  for (const Family family : kAllFamilies) {
    const Distribution best = fit(sample, family);
    const auto likelihood = [&](const Distribution& law) {
      double sum = 0;
      for (const double x : is_symmetric(family) ? sample.values() : sample.magnitudes())
        sum += std::log(law.density(x));
      return sum;
    };
    const double at_best = likelihood(best);
    for (std::size_t i = 0; i < best.params().size(); ++i) {
      for (const double factor : {0.99, 1.01}) {
        SCOPED_TRACE(testing::Message() << family_name(family) << ' ' << i << ' ' << factor);
        std::vector<double> params = best.params();
        params[i] *= factor;
        EXPECT_LT(likelihood(Distribution(family, params)), at_best);
      }
    }
  }
}

TEST(Fit, ScalesWithTheData) {
  std::vector<float> values = generated_sample(0.8, 1, 3000, 9);
  std::vector<std::vector<double>> before;
  for (const Family family : kAllFamilies) before.push_back(fit(values, family).params());
  for (float& x : values) x *= 0x1p-100f;
  for (std::size_t i = 0; i < kAllFamilies.size(); ++i) {
    SCOPED_TRACE(family_name(kAllFamilies[i]));
    const auto after = fit(values, kAllFamilies[i]).params();
    if (is_symmetric(kAllFamilies[i]))
      EXPECT_NEAR(after.back() * 0x1p100 / before[i].back(), 1, 1e-11);
    else
      EXPECT_NEAR(after[0] + 100 * std::log(2.0), before[i][0], 1e-11);
  }
}

TEST(Fit, RefusesWhereNoFitExists) {
  for (const Family family : kAllFamilies) {
    SCOPED_TRACE(family_name(family));
    for (const std::vector<float>& values :
         {std::vector<float>{}, {0.0f, -0.0f}, {kNan}, {0.0f, kInf, kNan}})
      EXPECT_THROW(fit(values, family), InvalidArgument);
    const std::vector<float> equal = {-2.5f, 2.5f, 0.0f, 2.5f};
    const bool has_spread =
        family == Family::kLognormal || family == Family::kLoglaplace || family == Family::kGennorm;
    if (has_spread) {
      EXPECT_THROW(fit(equal, family), InvalidArgument);
      EXPECT_THROW(fit(sample_of(equal), family), InvalidArgument);
    } else {
      EXPECT_NEAR(fit(equal, family).params()[0], 2.5, 1e-14);
    }
  }
  try {
    fit(std::vector<float>{1, -1}, Family::kLognormal);
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(
        error.what(),
        "[fit] expected magnitudes that differ for a lognormal law, got only the magnitude 1");
  }
}

TEST(Fit, HalfTheValuesAtOneMagnitude) {
  // More than half the values at one magnitude: the log-Laplace median sits there, spread and all.
  const Distribution law = fit(std::vector<float>{1, 1, 1, 8}, Family::kLoglaplace);
  EXPECT_EQ(law.params()[0], 0);
  EXPECT_NEAR(law.params()[1], std::log(8.0) / 4, 1e-15);
  // Two magnitudes are the flattest data there are.
  EXPECT_EQ(fit(std::vector<float>{1, 1.001f}, Family::kGennorm).params()[0], 128);
}

}  // namespace
}  // namespace slimgrad
