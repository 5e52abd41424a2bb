#include <slimgrad/threshold.h>

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include <slimgrad/error.h>

#include "golden.h"
#include "math/decide/pruning_law.h"
#include "stats_of.h"

namespace slimgrad {
namespace {

constexpr auto kLognormal = ThresholdMethod::kLognormal;
constexpr auto kEmpirical = ThresholdMethod::kEmpirical;

double number(const nlohmann::json& text) { return std::stod(text.get<std::string>()); }

TEST(LognormalThreshold, Golden) {
  for (const auto& row : golden("lognormal_threshold.json")["cases"]) {
    const double mu = row["mu"], sigma = row["sigma"], wanted = row["S"];
    SCOPED_TRACE(testing::Message() << "mu " << mu << " sigma " << sigma << " S " << wanted);
    const TensorStats stats = lognormal_stats(mu, sigma, 0);
    const Threshold found = threshold(stats, wanted, kLognormal);
    EXPECT_NEAR(found.value / row["alpha"].get<double>(), 1, 1e-12);
    EXPECT_NEAR(found.sparsity, wanted, 1e-13);
    EXPECT_NEAR(found.at_threshold, row["frac_alpha"], 1e-12);
    EXPECT_NEAR(found.survivors, row["frac_survive"], 1e-12);
    EXPECT_NEAR(expected_sparsity(stats, row["alpha"], kLognormal), wanted, 1e-13);
  }
}

TEST(LognormalThreshold, GoldenWithPointMassAtZero) {
  for (const auto& row : golden("lognormal_threshold.json")["zero_mass_cases"]) {
    const double sigma = row["sigma"], wanted = row["S"], zeros = row["s0"];
    SCOPED_TRACE(testing::Message() << "sigma " << sigma << " S " << wanted << " s0 " << zeros);
    const Threshold found = threshold(lognormal_stats(0, sigma, zeros), wanted, kLognormal);
    if (row["alpha_over_exp_mu"].is_null() || wanted <= zeros) {
      EXPECT_TRUE(found.nothing_to_prune);
      EXPECT_EQ(found.value, 0);
      EXPECT_EQ(found.sparsity, zeros);
      continue;
    }
    EXPECT_NEAR(found.value / row["alpha_over_exp_mu"].get<double>(), 1, 1e-12);
    EXPECT_NEAR(found.at_threshold, row["total_frac_alpha"], 1e-12);
    EXPECT_NEAR(found.survivors, row["total_frac_survive"], 1e-12);
  }
}

TEST(LognormalThreshold, GoldenAtLargeSpread) {
  for (const auto& row : golden("lognormal_threshold.json")["large_sigma_cases"]) {
    const double sigma = row["sigma"], wanted = row["S"];
    SCOPED_TRACE(testing::Message() << "sigma " << sigma << " S " << wanted);
    const auto law = make_lognormal_law(0, sigma);
    const double log_alpha = solve_log_alpha(*law, wanted, 1 - wanted);
    // S as a double is itself off by up to 1.1e-16, which d ln alpha = dS / f makes larger.
    const double rounding = 1.2e-16 / row["frac_alpha"].get<double>();
    EXPECT_NEAR(log_alpha, number(row["ln_alpha_str"]),
                1e-12 * std::max(1.0, std::abs(log_alpha)) + rounding);
    const PruningSplit split = law->split(number(row["ln_alpha_str"]));
    EXPECT_NEAR(split.zeros, wanted, 1e-13);
    EXPECT_NEAR(split.at / row["frac_alpha"].get<double>(), 1, 1e-11);
    EXPECT_NEAR(split.survivors / row["frac_survive"].get<double>(), 1, 1e-11);
  }
}

TEST(LognormalThreshold, GoldenAtTinySparsity) {
  for (const auto& row : golden("lognormal_threshold.json")["small_S_cases"]) {
    const double sigma = row["sigma"], a = row["a"];
    SCOPED_TRACE(testing::Message() << "sigma " << sigma << " a " << a);
    const double zeros = make_lognormal_law(0, sigma)->split(sigma * a).zeros;
    EXPECT_NEAR(zeros / number(row["S_str"]), 1, 1e-13);
  }
}

TEST(LognormalThreshold, ConvergesOnAFineGrid) {
  for (double sigma = 0.01; sigma <= 12; sigma *= 1.17)
    for (double wanted : {1e-6, 0.001, 0.1, 0.5, 0.7, 0.85, 0.95, 0.99, 0.999, 1 - 1e-9}) {
      const TensorStats stats = lognormal_stats(-7, sigma, 0);
      const Threshold found = threshold(stats, wanted, kLognormal);
      EXPECT_NEAR(found.sparsity, wanted, 1e-13) << sigma << ' ' << wanted;
      EXPECT_NEAR(expected_sparsity(stats, found.value, kLognormal), wanted, 1e-12);
    }
}

TEST(LognormalThreshold, WithoutSpreadIsOneMagnitude) {
  // All magnitudes 2: S = 1 - 2 / alpha.
  const TensorStats stats = lognormal_stats(std::log(2.0), 0, 0);
  EXPECT_NEAR(threshold(stats, 0.75, kLognormal).value, 8, 1e-12);
  // MSE = 2 (8 - 2) = 12, E x^2 = 4.
  EXPECT_NEAR(expected_cosine(stats, 8, kLognormal), 1 / std::sqrt(1 + 3.0), 1e-12);
}

TEST(LognormalCosine, Golden) {
  for (const auto& row : golden("cosine.json")["cases"]) {
    const double sigma = row["sigma"], a = row["a"];
    const auto& exact = row["by_k"]["none"];
    SCOPED_TRACE(testing::Message() << "sigma " << sigma << " a " << a);
    EXPECT_NEAR(make_lognormal_law(0, sigma)->nmse(sigma * a) / exact["nmse"].get<double>(), 1,
                1e-11);
    EXPECT_NEAR(expected_cosine(lognormal_stats(0, sigma, 0), std::exp(sigma * a), kLognormal),
                exact["cos"], 1e-12);
  }
}

// An empirical threshold must be right for whatever the tensor holds: lognormal, normal, a mixture
// of channels, quantized values, and with zeros.
std::vector<std::vector<float>> assorted_tensors() {
  std::mt19937_64 engine(7);
  std::normal_distribution<double> normal;
  std::vector<std::vector<float>> tensors(6);
  for (int i = 0; i < 200000; ++i) {
    const double z = normal(engine), w = normal(engine);
    const double sign = engine() & 1 ? -1 : 1;
    tensors[0].push_back(static_cast<float>(sign * std::exp(2.5 * z - 9)));
    tensors[1].push_back(static_cast<float>(0.003 * z));
    tensors[2].push_back(static_cast<float>(z * (i % 8 == 0 ? 1.0 : 1e-3)));
    tensors[3].push_back(static_cast<float>(i % 3 == 0 ? 0.0 : sign * std::exp(z)));
    tensors[4].push_back(static_cast<float>(sign * std::exp(6 * z)));
    tensors[5].push_back(static_cast<float>(std::cbrt(z) * w * 1e-20));
  }
  return tensors;
}

TEST(EmpiricalThreshold, IsExactToTheHistogram) {
  for (const auto& tensor : assorted_tensors()) {
    const TensorStats stats = stats_of(tensor);
    for (const double wanted : {0.4, 0.7, 0.8, 0.85, 0.9, 0.95, 0.99, 0.999}) {
      const Threshold found = threshold(stats, wanted, kEmpirical);
      EXPECT_NEAR(exact_sparsity(tensor, found.value), wanted, 5e-4) << wanted;
      EXPECT_NEAR(found.sparsity, wanted, 1e-12);
      EXPECT_NEAR(expected_cosine(stats, found.value, kEmpirical),
                  exact_cosine(tensor, found.value), 5e-4)
          << wanted;
      EXPECT_NEAR(found.sparsity + found.at_threshold + found.survivors, 1, 1e-12);
    }
  }
}

TEST(EmpiricalThreshold, OneValueAndPowersOfTwo) {
  const TensorStats one = stats_of({-3.f});
  EXPECT_NEAR(threshold(one, 0.9, kEmpirical).value, 30, 1e-6);
  // Values on the edges of bins, where a log-uniform law of the bin is farthest from the truth.
  std::vector<float> powers;
  for (int i = 0; i < 1000; ++i) powers.push_back(std::ldexp(1.f, -(i % 10)));
  for (const double wanted : {0.3, 0.6, 0.9}) {
    const double alpha = threshold(stats_of(powers), wanted, kEmpirical).value;
    EXPECT_NEAR(exact_sparsity(powers, alpha), wanted, 0.03);
  }
}

TEST(OtherThresholds, RecoverTheirOwnLaw) {
  std::mt19937_64 engine(11);
  std::normal_distribution<double> normal;
  std::vector<float> tensor;
  for (int i = 0; i < 400000; ++i) tensor.push_back(static_cast<float>(1e-4 * normal(engine)));
  const TensorStats stats = stats_of(tensor);
  for (const double wanted : {0.7, 0.85, 0.95}) {
    // One draw of 400,000 has a standard error below 8e-4 in S.
    for (const auto method : {ThresholdMethod::kNormal, ThresholdMethod::kGennorm})
      EXPECT_NEAR(exact_sparsity(tensor, threshold(stats, wanted, method).value), wanted, 3e-3)
          << method_name(method);
  }
  // At S = 0.95 alpha is far above every magnitude of a normal: the cheap rule is exact.
  const Threshold mean = threshold(stats, 0.95, ThresholdMethod::kMean);
  EXPECT_GT(mean.value, stats.max_abs);
  EXPECT_NEAR(exact_sparsity(tensor, mean.value), 0.95, 1e-6);
  EXPECT_NEAR(expected_cosine(stats, mean.value, ThresholdMethod::kMean),
              exact_cosine(tensor, mean.value), 1e-6);
}

TEST(Threshold, WhatCannotBeReachedIsSaid) {
  const TensorStats stats = stats_of({0, 0, 0, 1, 2});
  for (const auto method : {kEmpirical, kLognormal, ThresholdMethod::kGennorm,
                            ThresholdMethod::kNormal, ThresholdMethod::kMean}) {
    const Threshold found = threshold(stats, 0.5, method);
    EXPECT_TRUE(found.nothing_to_prune);
    EXPECT_EQ(found.value, 0);
    EXPECT_DOUBLE_EQ(found.sparsity, 0.6);
    EXPECT_DOUBLE_EQ(found.survivors, 0.4);
  }
  EXPECT_TRUE(threshold(stats_of({0, 0}), 0.9, kEmpirical).nothing_to_prune);
}

TEST(Threshold, RefusesBadArguments) {
  const TensorStats stats = stats_of({1, 2, 3});
  for (const double wanted : {-0.1, 1.0, 1.5, std::nan("")})
    EXPECT_THROW(threshold(stats, wanted, kEmpirical), InvalidArgument) << wanted;
  EXPECT_THROW(threshold(TensorStats{}, 0.5, kEmpirical), InvalidArgument);
  EXPECT_THROW(threshold(stats_of({std::nanf("")}), 0.5, kEmpirical), InvalidArgument);
  // Parameters alone have no histogram.
  EXPECT_THROW(threshold(lognormal_stats(0, 1, 0), 0.5, kEmpirical), InvalidArgument);
  EXPECT_THROW(threshold(lognormal_stats(0, 1, 0), 0.5, ThresholdMethod::kMean), InvalidArgument);
  for (const double alpha : {-1.0, std::nan(""), HUGE_VAL}) {
    EXPECT_THROW(expected_sparsity(stats, alpha, kEmpirical), InvalidArgument);
    EXPECT_THROW(expected_cosine(stats, alpha, kEmpirical), InvalidArgument);
  }
  EXPECT_THROW(lognormal_stats(0, -1, 0), InvalidArgument);
  EXPECT_THROW(lognormal_stats(0, 1, 1.5), InvalidArgument);
  EXPECT_THROW(parse_threshold_method("median"), InvalidArgument);
}

}  // namespace
}  // namespace slimgrad
