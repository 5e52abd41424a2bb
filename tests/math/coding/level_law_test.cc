// Masses of levels against Boost's quadrature, brute force over values, and one another.
#include "math/coding/level_law.h"

#include <gtest/gtest.h>

#include <boost/math/quadrature/gauss_kronrod.hpp>
#include <cmath>
#include <numeric>

#include "gennorm_sample.h"
#include "math/coding/model_table.h"

namespace slimgrad {
namespace {

int distance(int symbol) { return std::abs(symbol - kOpenCentre); }
int last_level(int symbol) { return first_level(distance(symbol) + 1) - 1; }

// The chance that a value x, in steps, falls into the levels of a symbol.
double chance(double x, int symbol, Rounding rounding) {
  const double sign = symbol < kOpenCentre ? -1 : 1;
  const double t = symbol == kOpenCentre ? std::abs(x) : sign * x;
  const double first = first_level(distance(symbol)), last = last_level(symbol);
  if (rounding == Rounding::kNearest) {
    if (symbol == kOpenCentre) return t < 0.5 ? 1 : 0;
    return t > first - 0.5 && t < last + 0.5 ? 1 : 0;
  }
  if (symbol == kOpenCentre) return std::max(0.0, 1 - t);
  return std::clamp(t - (first - 1), 0.0, 1.0) - std::clamp(t - last, 0.0, 1.0);
}

// Integrals over pieces between multiples of half a step, where the integrand is smooth.
double quadrature(double shape, double scale, int symbol, Rounding rounding) {
  const double density_factor = shape / (2 * scale * std::tgamma(1 / shape));
  const auto integrand = [&](double x) {
    return chance(x, symbol, rounding) * density_factor *
           std::exp(-std::pow(std::abs(x) / scale, shape));
  };
  const double low = std::max(0.0, first_level(distance(symbol)) - 1.0);
  const double high = last_level(symbol) + 1.0;
  double sum = 0;
  for (double x = low; x < high; x += 0.5) {
    // A density of shape below 1 has a cusp at zero: |x| = y^(1 / shape) takes it away.
    if (x == 0 && shape < 1)
      sum += boost::math::quadrature::gauss_kronrod<double, 61>::integrate(
          [&](double y) {
            const double at = std::pow(y, 1 / shape);
            return integrand(at) * at / (shape * y);
          },
          0.0, std::pow(0.5, shape), 15, 1e-12);
    else
      sum += boost::math::quadrature::gauss_kronrod<double, 31>::integrate(integrand, x, x + 0.5,
                                                                           10, 1e-12);
  }
  return symbol == kOpenCentre ? 2 * sum : sum;
}

TEST(LevelLaw, GennormMassesAreIntegralsOfTheDensity) {
  for (const double shape : {0.3, 0.5, 1.0, 2.0})
    for (const double scale : {0.05, 0.7, 9.0})
      for (const Rounding rounding : {Rounding::kNearest, Rounding::kStochastic}) {
        const SymbolMasses masses = level_masses(shape, scale, 1.0, rounding);
        for (std::size_t k = 1; k <= kOpenCentre; ++k)
          EXPECT_EQ(masses[kOpenCentre - k], masses[kOpenCentre + k]);
        for (const int symbol : {127, 128, 129, 135, 140, 239, 241})
          EXPECT_NEAR(masses[static_cast<std::size_t>(symbol)],
                      quadrature(shape, scale, symbol, rounding), 1e-9)
              << shape << ' ' << scale << ' ' << symbol;
        EXPECT_NEAR(std::accumulate(masses.begin(), masses.end(), 0.0), 1.0, 1e-9);
      }
}

// Values in one bin each: masses are then sums of chances, by brute force.
TEST(LevelLaw, BinnedMassesAreSumsOverValues) {
  const std::vector<float> values = generated_sample(0.5, 1.0, 3000, 3);
  std::vector<float> positive, negative;
  for (const float x : values) (x > 0 ? positive : negative).push_back(std::abs(x));
  std::sort(positive.begin(), positive.end());
  std::sort(negative.begin(), negative.end());
  BinnedLaw law;
  law.zeros = 17;
  for (const float x : positive) law.positive.push_back({x, x * (1 + 1e-9), 1});
  for (const float x : negative) law.negative.push_back({x, x * (1 + 1e-9), 1});
  for (const double step : {0.003, 0.2, 5.0})
    for (const Rounding rounding : {Rounding::kNearest, Rounding::kStochastic}) {
      const SymbolMasses masses = level_masses(law, step, rounding);
      SymbolMasses expected = {};
      expected[kOpenCentre] = 17;
      for (const float x : values)
        for (int s = 0; s < kNumOpenSymbols; ++s)
          expected[static_cast<std::size_t>(s)] += chance(x / step, s, rounding);
      for (std::size_t s = 0; s < masses.size(); ++s)
        EXPECT_NEAR(masses[s], expected[s], 1e-4) << s << ' ' << step;
    }
}

TEST(LevelLaw, BitsAreTheEntropyOfAllLevels) {
  // One bit a group costs what its levels' differences say: here, evenly spread, nothing.
  BinnedLaw law;
  law.positive.push_back({112.5, 127.5, 1000});
  const double bits = level_bits(level_masses(law, 1.0, Rounding::kNearest));
  EXPECT_NEAR(bits, 1000 * std::log2(16.0), 1e-6 * bits + 1000 * 0.1);
  // For a small step, h(x) - log2(step), h of the normal law with scale sqrt 2 sigma.
  for (const double sigma : {20.0, 60.0, 120.0}) {
    const double rate =
        level_bits(level_masses(2.0, std::sqrt(2.0) * sigma, 1.0, Rounding::kStochastic));
    const double h = 0.5 * std::log2(2 * 3.14159265358979 * std::exp(1.0)) + std::log2(sigma);
    EXPECT_GE(rate, h - 1e-4);
    EXPECT_LE(rate, h + (sigma < 100 ? 0.02 : 0.04)) << sigma;  // what groups of levels cost
  }
}

TEST(LevelLaw, BitsFallInTheStep) {
  for (const double shape : {0.3, 1.0, 2.0}) {
    double last = 100;
    for (double step = 1e-3; step < 100; step *= 1.3) {
      const double bits = level_bits(level_masses(shape, 1.0, step, Rounding::kStochastic));
      EXPECT_LT(bits, last);
      last = bits;
    }
  }
}

TEST(LevelLaw, WeightsAreMixedMasses) {
  const Weights weights = level_weights(0.7, 3.0);
  const SymbolMasses masses = level_masses(0.7, 3.0, 1.0, Rounding::kStochastic);
  for (std::size_t s = 0; s < masses.size(); ++s)
    EXPECT_NEAR(static_cast<double>(weights[s]) * 0x1p-40,
                masses[s] * 1023 / 1024 + 1.0 / 1024 / 255, 2e-12);
  EXPECT_EQ(weights[255], 0u);
}

}  // namespace
}  // namespace slimgrad
