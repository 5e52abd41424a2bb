#include "math/measure/gennorm.h"

#include <boost/math/special_functions/digamma.hpp>
#include <boost/math/special_functions/gamma.hpp>
#include <cmath>
#include <limits>

#include "math/quiet_policy.h"

namespace slimgrad {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// |x| / scale and its power, the argument of the gamma law.
struct Reduced {
  double ratio, z;
};

// In the tail the density is exp(-z), which turns an error of z ulp in the exponent into a relative
// one. So the rounding of the division, which the power would multiply by the shape, is undone to
// first order.
Reduced reduce(const Gennorm& law, double x) {
  const double magnitude = std::abs(x);
  const double ratio = magnitude / law.scale;
  double z = std::pow(ratio, law.shape);
  if (ratio > 0 && ratio < 1e300 && z < 1e4) {
    const double rest = std::fma(-ratio, law.scale, magnitude) / magnitude;
    z += z * law.shape * rest;
  }
  return {ratio, z};
}

// P(c, z) with c = (power + 1) / shape. For tiny z, where z may even underflow while its c-th power
// does not, the first term of the series: z^c = ratio^(power + 1).
double regularized_lower(const Gennorm& law, int power, double t) {
  const auto [ratio, z] = reduce(law, t);
  const double c = (power + 1) / law.shape;
  if (z == kInfinity) return 1;
  if (z < 1e-17) return std::pow(ratio, power + 1) / boost::math::tgamma(c + 1, kQuiet);
  return boost::math::gamma_p(c, z, kQuiet);
}

double regularized_upper(const Gennorm& law, int power, double t) {
  const auto [ratio, z] = reduce(law, t);
  if (z == kInfinity) return 0;
  if (z < 1e-17) return 1 - regularized_lower(law, power, t);
  return boost::math::gamma_q((power + 1) / law.shape, z, kQuiet);
}

// The magnitude m with P(|X| <= m) = inside, P(|X| > m) = outside, from the smaller of the two.
double magnitude_quantile(const Gennorm& law, double inside, double outside) {
  if (outside <= 0) return kInfinity;
  // Close to zero the cdf is the straight line ratio / Gamma(1 + 1/shape), as above.
  const double a = 1 / law.shape;
  const double ratio = inside * boost::math::tgamma(a + 1, kQuiet);
  if (std::pow(ratio, law.shape) < 1e-17) return law.scale * ratio;
  const double z = inside < outside ? boost::math::gamma_p_inv(a, inside, kQuiet)
                                    : boost::math::gamma_q_inv(a, outside, kQuiet);
  return law.scale * std::pow(z, a);
}

}  // namespace

double gennorm_density(const Gennorm& law, double x) {
  // Gamma(1 + 1/shape) is Gamma(1/shape) / shape, without its pole at large shapes.
  const double norm = 2 * law.scale * boost::math::tgamma(1 + 1 / law.shape, kQuiet);
  return std::exp(-reduce(law, x).z) / norm;
}

double gennorm_cdf(const Gennorm& law, double x) {
  const double tail = regularized_upper(law, 0, x) / 2;
  return x < 0 ? tail : 1 - tail;
}

double gennorm_quantile(const Gennorm& law, double p) {
  // 2p, 1 - 2p for p >= 1/4 and 2p - 1, 1 - p for p >= 1/2 are exact.
  if (p < 0.5) return -magnitude_quantile(law, 1 - 2 * p, 2 * p);
  return magnitude_quantile(law, 2 * p - 1, 2 * (1 - p));
}

double gennorm_moment(const Gennorm& law, int power) {
  const double a = 1 / law.shape;
  const double moment = boost::math::tgamma_ratio((power + 1) * a, a, kQuiet);
  return power == 0 ? 1 : std::pow(law.scale, power) * moment;
}

double gennorm_lower_moment(const Gennorm& law, int power, double t) {
  return gennorm_moment(law, power) * regularized_lower(law, power, t);
}

double gennorm_upper_moment(const Gennorm& law, int power, double t) {
  return gennorm_moment(law, power) * regularized_upper(law, power, t);
}

double gennorm_moment_ratio(double shape) {
  // Gamma(2a)^2 / (Gamma(a) Gamma(3a)) as two quotients, neither of which overflows before its
  // reciprocal underflows.
  const double a = 1 / shape;
  return boost::math::tgamma_ratio(2 * a, a, kQuiet) /
         boost::math::tgamma_ratio(3 * a, 2 * a, kQuiet);
}

double gennorm_shape_of_moment_ratio(double ratio) {
  if (!(ratio < 0.75)) return kMaxGennormShape;
  // Newton for ln of the quotient as a function of ln shape: both nearly straight.
  const auto distance = [ratio](double log_shape) {
    const double a = std::exp(-log_shape);
    using boost::math::digamma;
    const double slope = a * (4 * digamma(2 * a) - digamma(a) - 3 * digamma(3 * a));
    return ValueAndSlope{std::log(ratio / gennorm_moment_ratio(1 / a)), slope};
  };
  return shape_root(distance, 1, 1e-12);
}

}  // namespace slimgrad
