#include "math/measure/partial_mean.h"

#include <cmath>
#include <limits>

#include "math/measure/gennorm.h"
#include "math/normal.h"

namespace slimgrad {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// E[|X|; |X| > t] / 2 = E[X; X > t] for the symmetric families, t >= 0.
double symmetric_tail(const Distribution& law, double t) {
  const double scale = law.params().back();
  const double r = t / scale;
  switch (law.family()) {
    case Family::kNormal:
      return scale * normal_density(r);
    case Family::kLaplace:
      return r == kInfinity ? 0 : scale * (1 + r) * std::exp(-r) / 2;
    case Family::kUniform:
      return r < 1 ? scale * (1 - r) * (1 + r) / 4 : 0;
    case Family::kGennorm:
      return gennorm_upper_moment({law.params()[0], scale}, 1, t) / 2;
    default:
      return kInfinity;
  }
}

// ln X = log_median + s Y with Y Laplace; v = exp(-|Y|) is twice the probability of the nearer
// tail, and X = e^log_median v^-s above the median. Both integrals are of powers of v.
double loglaplace_below(double median, double s, double v) {
  return median * std::pow(v, 1 + s) / (2 * (1 + s));
}
double loglaplace_above(double median, double s, double v) {
  return median * std::pow(v, 1 - s) / (2 * (1 - s));
}

}  // namespace

double mean_of(const Distribution& law) {
  const auto& p = law.params();
  switch (law.family()) {
    case Family::kCauchy:
      return kInfinity;
    case Family::kLognormal:
      return std::exp(p[0] + p[1] * p[1] / 2);
    case Family::kLoglaplace:
      return p[1] < 1 ? std::exp(p[0]) / ((1 - p[1]) * (1 + p[1])) : kInfinity;
    default:
      return 0;
  }
}

double mean_square_of(const Distribution& law) {
  const auto& p = law.params();
  const double scale = p.back();
  switch (law.family()) {
    case Family::kNormal:
      return scale * scale;
    case Family::kLaplace:
      return 2 * scale * scale;
    case Family::kUniform:
      return scale * scale / 3;
    case Family::kGennorm:
      return gennorm_moment({p[0], scale}, 2);
    case Family::kLognormal:
      return std::exp(2 * (p[0] + scale * scale));
    case Family::kLoglaplace:
      return scale < 0.5 ? std::exp(2 * p[0]) / ((1 - 2 * scale) * (1 + 2 * scale)) : kInfinity;
    case Family::kCauchy:
      return kInfinity;
  }
  return kInfinity;  // not reached: the switch is complete
}

double partial_mean(const Distribution& law, double x) {
  if (is_symmetric(law.family())) return -symmetric_tail(law, std::abs(x));
  if (!(x > 0)) return 0;
  const double log_location = law.params()[0];
  const double s = law.params()[1];
  const double y = (std::log(x) - log_location) / s;
  if (law.family() == Family::kLognormal) return mean_of(law) * normal_cdf(y - s);
  const double median = std::exp(log_location);
  if (y <= 0) return loglaplace_below(median, s, std::exp(y));
  return mean_of(law) - loglaplace_above(median, s, std::exp(-y));
}

double upper_partial_mean(const Distribution& law, double x) {
  if (is_symmetric(law.family())) return symmetric_tail(law, std::abs(x));
  if (!(x > 0)) return mean_of(law);
  const double log_location = law.params()[0];
  const double s = law.params()[1];
  const double y = (std::log(x) - log_location) / s;
  if (law.family() == Family::kLognormal) return mean_of(law) * normal_cdf(s - y);
  const double median = std::exp(log_location);
  if (y > 0) return loglaplace_above(median, s, std::exp(-y));
  return mean_of(law) - loglaplace_below(median, s, std::exp(y));
}

}  // namespace slimgrad
