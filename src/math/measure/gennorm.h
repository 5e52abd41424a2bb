// The generalized normal law with location 0: density shape / (2 scale Gamma(1/shape))
// exp(-(|x|/scale)^shape). Shape 1 is Laplace's law, 2 the normal (scale = sqrt(2) sigma), and the
// limit of large shapes the uniform law on [-scale, scale].
//
// Everything follows from one substitution: Z = (|X|/scale)^shape has a Gamma(1/shape) law, so cdf
// and partial moments are regularized incomplete gamma functions. All functions are pure.
#ifndef SLIMGRAD_MATH_MEASURE_GENNORM_H_
#define SLIMGRAD_MATH_MEASURE_GENNORM_H_

#include <cmath>

#include "math/newton.h"

namespace slimgrad {

struct Gennorm {
  double shape = 2;  // positive, finite
  double scale = 1;  // positive, finite
};

double gennorm_density(const Gennorm& law, double x);
// To full relative accuracy for x -> -inf. The upper tail is gennorm_cdf(law, -x).
double gennorm_cdf(const Gennorm& law, double x);
// -inf and inf at 0 and 1. REQUIRES: 0 <= p <= 1.
double gennorm_quantile(const Gennorm& law, double p);

// E |X|^power. Infinity where it overflows. REQUIRES: 0 <= power <= 2.
double gennorm_moment(const Gennorm& law, int power);
// E[|X|^power; |X| <= t] and E[|X|^power; |X| > t], each to full relative accuracy where it is
// small. Power 0 gives P(|X| <= t) and P(|X| > t). REQUIRES: 0 <= power <= 2, t >= 0.
double gennorm_lower_moment(const Gennorm& law, int power, double t);
double gennorm_upper_moment(const Gennorm& law, int power, double t);

// (E|X|)^2 / E X^2: depends on the shape alone, increases from 0 to 3/4.
double gennorm_moment_ratio(double shape);
// The inverse, clamped to [kMinGennormShape, kMaxGennormShape]: a ratio at or above 3/4, which a
// sample can have and no generalized normal has, gives the upper end.
double gennorm_shape_of_moment_ratio(double ratio);

// The shapes that fits return. Below the first E X^2 / scale^2 nears the end of double; above the
// second the law is the uniform one to within a percent.
inline constexpr double kMinGennormShape = 1.0 / 64;
inline constexpr double kMaxGennormShape = 128;

// How equations for the shape are solved: falling_root() over ln shape, in which the equations are
// nearly straight, between the smallest and the largest shape that fits return; exactly these where
// there is no root in between.
template <typename FunctionOfLogShape>
double shape_root(FunctionOfLogShape&& function, double start_shape, double tolerance) {
  const double low = std::log(kMinGennormShape);
  const double high = std::log(kMaxGennormShape);
  const double root = falling_root(function, std::log(start_shape), low, high, tolerance);
  if (root <= low) return kMinGennormShape;
  if (root >= high) return kMaxGennormShape;
  return std::exp(root);
}

}  // namespace slimgrad

#endif  // SLIMGRAD_MATH_MEASURE_GENNORM_H_
