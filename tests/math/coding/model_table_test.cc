#include "math/coding/model_table.h"

#include <gtest/gtest.h>

#include <boost/math/special_functions/gamma.hpp>
#include <cmath>

#include "arrays/coding/symbols.h"
#include "formats/model_parameter.h"
#include "golden.h"
#include "math/coding/frequencies.h"

namespace slimgrad {
namespace {

TEST(ModelTable, IncompleteGammaAgreesWithBoost) {
  for (const double a : {1.0 / 64, 0.1, 0.5, 1.0, 2.5, 7.0, 20.0})
    for (double x = 1e-12; x < 700.0; x *= 1.7) {
      const GammaPair pair = portable_incomplete_gamma(a, x);
      EXPECT_NEAR(pair.p, boost::math::gamma_p(a, x), 1e-13) << a << ' ' << x;
      const double q = boost::math::gamma_q(a, x);
      EXPECT_NEAR(pair.q, q, 1e-13) << a << ' ' << x;
      if (x >= a + 1.0 && q > 1e-290) {
        EXPECT_NEAR(pair.q / q, 1.0, 1e-12) << a << ' ' << x;
      }
    }
}

// The probability of symbol k, from Boost, with the uniform law mixed in.
double cell(const ModelParameters& m, int k) {
  const auto cdf = [&](double x) {
    const double p = boost::math::gamma_p(1.0 / m.shape, std::pow(std::abs(x) / m.scale, m.shape));
    return 0.5 + (x < 0 ? -0.5 : 0.5) * p;
  };
  const double centre = m.twice_centre / 2.0;
  const double low = k == m.first ? 0.0 : cdf(k - 0.5 - centre);
  const double high = k == m.last ? 1.0 : cdf(k + 0.5 - centre);
  return (high - low) * 1023.0 / 1024.0 + 1.0 / 1024.0 / (m.last - m.first + 1);
}

TEST(ModelTable, WeightsAreTheCellProbabilities) {
  for (const double shape : {0.2, 0.5, 1.0, 1.7, 2.0, 8.0})
    for (const double scale : {0.01, 0.7, 6.0, 90.0, 3000.0})
      for (const int twice_centre : {255, 256, 100}) {
        const ModelParameters m = {round_parameter(shape), round_parameter(scale),
                                   static_cast<std::uint16_t>(twice_centre), 3, 251};
        ASSERT_TRUE(is_valid(m));
        const Weights weights = model_weights(m);
        for (int k = 0; k < 256; ++k) {
          const double expected = k < 3 || k > 251 ? 0.0 : cell(m, k);
          EXPECT_NEAR(static_cast<double>(weights[k]) * 0x1p-40, expected, 2e-12) << k;
        }
      }
}

TEST(ModelTable, LimitsAreChecked) {
  EXPECT_FALSE(is_valid(ModelParameters{round_parameter(1.0), 1, 255, 7, 7}));
  EXPECT_FALSE(is_valid(ModelParameters{round_parameter(0.04), 1, 255, 0, 255}));
  EXPECT_FALSE(is_valid(ModelParameters{round_parameter(65.0), 1, 255, 0, 255}));
  EXPECT_TRUE(is_valid(ModelParameters{round_parameter(1.0), 1e5, 65535, 0, 255}));
  // Any parameters that pass give weights that make tables.
  for (const double scale : {round_parameter(0), round_parameter(1e30)})
    for (const double shape : {0.05, 64.0})
      for (const std::uint16_t centre : {0, 255, 65535}) {
        const ModelParameters m = {round_parameter(shape * 1.001 - (shape > 1 ? 0.1 : 0.0)), scale,
                                   centre, 0, 255};
        ASSERT_TRUE(is_valid(m));
        EXPECT_TRUE(choose_frequencies(model_weights(m)));
      }
}

// Huffman's own algorithm, by repeated search: lengths without a limit.
std::array<int, 256> unlimited_lengths(const Weights& weights) {
  std::vector<std::pair<std::uint64_t, std::vector<int>>> nodes;
  for (int k = 0; k < 256; ++k)
    if (weights[k] > 0) nodes.push_back({weights[k], {k}});
  std::array<int, 256> lengths = {};
  const auto take_lightest = [&] {
    const auto lightest = std::min_element(
        nodes.begin(), nodes.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    auto node = *lightest;
    nodes.erase(lightest);
    return node;
  };
  while (nodes.size() > 1) {
    auto a = take_lightest();
    const auto b = take_lightest();
    a.first += b.first;
    a.second.insert(a.second.end(), b.second.begin(), b.second.end());
    for (const int k : a.second) ++lengths[k];
    nodes.push_back(a);
  }
  return lengths;
}

// tests/golden/gennorm.json: the population entropy of each quantizer, the cross entropy and the
// Huffman cost of each model's floored law. The law is scale 1 in the golden file's units, so the
// scale in steps is 1 / step; the normal and Laplace models match the variance and the mean
// magnitude.
TEST(ModelTable, GoldenCrossEntropiesAndHuffmanCosts) {
  const auto file = golden("gennorm.json");
  double worst_limit_cost = 0.0;
  for (const auto& row : file["coding"]["population"]) {
    const double beta = row["beta"], step = row["step"];
    const bool affine = row["quantizer"] == "affine256";
    ModelParameters truth = {round_parameter(beta), round_parameter(1.0 / step),
                             static_cast<std::uint16_t>(affine ? 255 : 256), 0, 255};
    if (!affine) truth.first = 1;
    // Exact cell probabilities of the true law, unrounded, as the golden file has them.
    const double last = affine ? 255 : 255, first = truth.first, centre = affine ? 127.5 : 128.0;
    const auto cdf = [&](double x) {
      const double p = boost::math::gamma_p(1.0 / beta, std::pow(std::abs(x) * step, beta));
      return 0.5 + (x < 0 ? -0.5 : 0.5) * p;
    };
    std::array<double, 256> p = {};
    double entropy = 0.0;
    for (int k = static_cast<int>(first); k <= last; ++k) {
      p[k] = (k == last ? 1.0 : cdf(k + 0.5 - centre)) - (k == first ? 0.0 : cdf(k - 0.5 - centre));
      if (p[k] > 0) entropy -= p[k] * std::log2(p[k]);
    }
    EXPECT_NEAR(entropy, row["entropy"].get<double>(), 1e-9);
    const double g = std::tgamma(1.0 / beta);
    const double deviation = std::sqrt(std::tgamma(3.0 / beta) / g) / step;
    const double mean = std::tgamma(2.0 / beta) / g / step;
    const std::tuple<const char*, double, double> models[] = {
        {"gennorm", beta, 1.0 / step},
        {"normal", 2.0, deviation * std::sqrt(2.0)},
        {"laplace", 1.0, mean}};
    for (const auto& [name, shape, scale] : models) {
      ModelParameters m = truth;
      m.shape = round_parameter(shape);
      m.scale = round_parameter(scale);
      const Weights weights = model_weights(m);
      double sum = 0.0, cross = 0.0, coded = 0.0;
      for (const std::uint64_t w : weights) sum += static_cast<double>(w);
      const RansFrequencies f = *choose_frequencies(weights);
      const HuffmanLengths lengths = huffman_lengths(weights);
      for (int k = truth.first; k <= 255; ++k) {
        cross -= p[k] * std::log2(static_cast<double>(weights[k]) / sum);
        const bool escapes = f.escapes(k);
        coded += p[k] * (std::log2(4096.0 / f.frequency[escapes ? f.escape : k]) + 8 * escapes);
      }
      const auto& expected = row[name]["floored"];
      // Parameters rounded to one part in 4096 move a cross entropy by a few 1e-4 at most.
      EXPECT_NEAR(cross, expected["cross_entropy"].get<double>(), 2e-3) << name << beta;
      // The integer table: rounding, and escapes for the tails.
      EXPECT_NEAR(coded, expected["cross_entropy"].get<double>(), 0.06) << name << beta;
      // The golden code has no limit of length. Ties may fall otherwise, which moves the cost a
      // little where the model is not the truth.
      const std::array<int, 256> plain = unlimited_lengths(weights);
      double unlimited = 0.0, design_unlimited = 0.0, design_limited = 0.0;
      for (int k = 0; k < 256; ++k) {
        unlimited += p[k] * plain[k];
        design_unlimited += static_cast<double>(weights[k]) * plain[k] / sum;
        design_limited += static_cast<double>(weights[k]) * lengths[k] / sum;
      }
      EXPECT_NEAR(unlimited, expected["huffman"].get<double>(), 5e-3) << name << beta;
      // A limit cannot make a code better under the law that it was made for.
      EXPECT_GE(design_limited, design_unlimited - 1e-12) << name << beta;
      worst_limit_cost = std::max(worst_limit_cost, design_limited - design_unlimited);
    }
  }
  RecordProperty("worst_cost_of_the_length_limit_in_bits", std::to_string(worst_limit_cost));
}

}  // namespace
}  // namespace slimgrad
