#include "math/coding/model_table.h"

#include <algorithm>
#include <cmath>

#include "base/portable_math.h"

namespace slimgrad {
namespace {

// The sum x^n / (a (a+1) ... (a+n)): fast where x < a + 1.
double gamma_series(double a, double x) {
  double term = 1.0 / a, sum = term;
  for (int n = 1; n < 1000 && term > sum * 0x1p-54; ++n) {
    term = term * (x / (a + n));
    sum = sum + term;
  }
  return sum;
}

// Lentz's evaluation of the continued fraction of the upper function: fast where x >= a + 1.
double gamma_fraction(double a, double x) {
  double b = x + 1.0 - a, c = 0x1p1000, d = 1.0 / b, h = d;
  for (int n = 1; n < 1000; ++n) {
    const double an = n * (a - n);
    b = b + 2.0;
    d = 1.0 / (an * d + b);
    c = b + an / c;
    const double change = c * d;
    h = h * change;
    if (change > 1.0 - 0x1p-52 && change < 1.0 + 0x1p-52) break;
  }
  return h;
}

// What is left of and right of x > 0 under the half law |X|.
GammaPair half_law(double shape, double scale, double x) {
  const double exponent = shape * portable_log(x / scale);
  if (exponent > 6.6) return {1.0, 0.0};  // (x / scale)^shape > 735: the tail is below 1e-300
  return portable_incomplete_gamma(1.0 / shape, portable_exp(exponent));
}

}  // namespace

// ln Gamma(a) by Stirling's series at a + 16 and the recurrence Gamma(a + 1) = a Gamma(a). At 16
// the first term left out is 2e-3 / 16^11 < 1e-16.
double portable_log_gamma(double a) {
  double product = 1.0;
  for (int i = 0; i < 16; ++i) product = product * (a + i);
  const double z = a + 16.0;
  const double w = 1.0 / (z * z);
  const double series =
      (1.0 / 12 + w * (-1.0 / 360 + w * (1.0 / 1260 + w * (-1.0 / 1680 + w * (1.0 / 1188))))) / z;
  constexpr double kHalfLogTwoPi = 0x1.d67f1c864beb5p-1;
  return (z - 0.5) * portable_log(z) - z + kHalfLogTwoPi + series - portable_log(product);
}

GammaPair portable_incomplete_gamma(double a, double x) {
  if (x < 1e-300) return {0.0, 1.0};
  const double factor = portable_exp(a * portable_log(x) - x - portable_log_gamma(a));
  if (x < a + 1.0) {
    const double p = std::min(1.0, factor * gamma_series(a, x));
    return {p, 1.0 - p};
  }
  const double q = std::min(1.0, factor * gamma_fraction(a, x));
  return {1.0 - q, q};
}

bool is_valid(const ModelParameters& parameters) {
  return parameters.first < parameters.last && parameters.shape >= kSmallestModelShape &&
         parameters.shape <= kLargestModelShape;
}

Weights model_weights(const ModelParameters& parameters) {
  const double shape = parameters.shape, scale = parameters.scale;
  const int num_symbols = parameters.last - parameters.first + 1;
  // Twice the distance of a border from the centre is an odd or even integer, never rounded. A
  // border left of the centre mirrors: what lies below it is the right tail.
  struct Border {
    double below, above;  // the mass on each side, both without cancellation
  };
  const auto border = [&](int symbol) -> Border {  // the border between symbol - 1 and symbol
    if (symbol == parameters.first) return {0.0, 1.0};
    if (symbol > parameters.last) return {1.0, 0.0};
    const int twice = 2 * symbol - 1 - parameters.twice_centre;
    if (twice == 0) return {0.5, 0.5};
    const GammaPair half = half_law(shape, scale, 0.5 * (twice > 0 ? twice : -twice));
    const double tail = 0.5 * half.q, rest = 0.5 + 0.5 * half.p;
    return twice > 0 ? Border{rest, tail} : Border{tail, rest};
  };
  Weights weights = {};
  Border left = border(parameters.first);
  for (int s = parameters.first; s <= parameters.last; ++s) {
    const Border right = border(s + 1);
    const double mass = right.below < 0.5 ? right.below - left.below : left.above - right.above;
    const double mixed =
        (mass > 0.0 ? mass : 0.0) * (1023.0 / 1024.0) + 1.0 / (1024.0 * num_symbols);
    weights[s] = static_cast<std::uint64_t>(mixed * 0x1p40);
    left = right;
  }
  return weights;
}

}  // namespace slimgrad
