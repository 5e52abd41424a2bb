// The standard normal law, accurate to a few ulp in both tails.
//
// The tails are where the closed forms of pruning and of the float formats live: there 1 - Phi(t)
// cancels and phi(t) underflows, but their quotient, the Mills ratio, is a tame function. Formulas
// that are written with it neither cancel nor overflow. All functions are pure and the same bits on
// every machine and device; NaN gives NaN.
#ifndef SLIMGRAD_MATH_NORMAL_H_
#define SLIMGRAD_MATH_NORMAL_H_

#include <cstddef>
#include <limits>
#include <numbers>

#include "base/portable_math.h"

namespace slimgrad {
namespace normal_parts {

inline constexpr double kSqrtTwoPi = 0x1.40d931ff62706p+1;

// Coefficients from the highest power down.
template <std::size_t n>
constexpr double polynomial(const double (&coefficients)[n], double x) {
  double sum = coefficients[0];
  for (std::size_t i = 1; i < n; ++i) sum = sum * x + coefficients[i];
  return sum;
}

// t^2 less its rounding, exactly (Dekker: both halves of t have at most 27 bits).
constexpr double rest_of_square(double t, double square) {
  const double scaled = 0x1.0000002p27 * t;  // 2^27 + 1
  const double high = scaled - (scaled - t), low = t - high;
  return ((high * high - square) + 2 * high * low) + low * low;
}

// exp(sign t^2 / 2). Rounding t^2 would cost a relative error of t^2 ulp; the part that is rounded
// away is known exactly, and small enough for exp(r) = 1 + r.
constexpr double exp_half_square(double t, double sign) {
  const double square = t * t;
  if (!(square < 2000)) return portable_exp(sign * square);  // 0, infinity or NaN
  const double rest = rest_of_square(t, square);
  const double value = portable_exp(sign * square / 2);
  return value + value * (sign * rest / 2);
}

// The rational approximations of W. J. Cody, Rational Chebyshev approximations for the error
// function, Math. Comp. 23 (1969), as in his CALERF: to 1e-16, without exp or with ours, where a C
// library's or Boost's differ in the last bit from one machine to the next.

// erf(x) / x for |x| <= kCentre, given x^2.
inline constexpr double kCentre = 0.46875;
constexpr double erf_over_x(double square) {
  constexpr double kAbove[] = {1.85777706184603153e-1, 3.16112374387056560, 1.13864154151050156e2,
                               3.77485237685302021e2, 3.20937758913846947e3};
  constexpr double kBelow[] = {1, 2.36012909523441209e1, 2.44024637934444173e2,
                               1.28261652607737228e3, 2.84423683343917062e3};
  return polynomial(kAbove, square) / polynomial(kBelow, square);
}

// exp(x^2) erfc(x) for kCentre <= x <= 4.
constexpr double scaled_erfc(double x) {
  constexpr double kAbove[] = {
      2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594,
      6.61191906371416295e1,  2.98635138197400131e2,  8.81952221241769090e2,
      1.71204761263407058e3,  2.05107837782607147e3,  1.23033935479799725e3};
  constexpr double kBelow[] = {1,
                               1.57449261107098347e1,
                               1.17693950891312499e2,
                               5.37181101862009858e2,
                               1.62138957456669019e3,
                               3.29079923573345963e3,
                               4.36261909014324716e3,
                               3.43936767414372164e3,
                               1.23033935480374942e3};
  return polynomial(kAbove, x) / polynomial(kBelow, x);
}

// Laplace's continued fraction 1/(t + 1/(t + 2/(t + 3/(t + ...)))), cut after a fixed number of
// terms. The error of n terms falls like exp(-2 t sqrt(2n)): at t = 3, the smallest argument used,
// 50 terms leave 1e-26.
constexpr double mills_continued_fraction(double t) {
  constexpr int kNumTerms = 50;
  double tail = t;
  for (int k = kNumTerms; k >= 1; --k) tail = t + k / tail;
  return 1 / tail;
}

inline constexpr double kTail = 3;

// Mills' ratio for t above the centre, where neither exp nor a difference is needed.
constexpr double mills_of_upper(double t) {
  return t > kTail ? mills_continued_fraction(t)
                   : kSqrtTwoPi / 2 * scaled_erfc(t / std::numbers::sqrt2);
}

}  // namespace normal_parts

// phi(t) = exp(-t^2 / 2) / sqrt(2 pi).
constexpr double normal_density(double t) {
  return normal_parts::exp_half_square(t, -1) / normal_parts::kSqrtTwoPi;
}

// Phi(t), to full relative accuracy for t -> -inf. The upper tail is normal_cdf(-t).
constexpr double normal_cdf(double t) {
  using namespace normal_parts;
  if (t < -40) return 0;
  if (t > 40) return 1;
  const double x = t / std::numbers::sqrt2;
  if (x < -kCentre) return normal_density(t) * mills_of_upper(-t);
  if (x > kCentre) return 1 - normal_density(t) * mills_of_upper(t);
  return 0.5 + x * erf_over_x(x * x) / 2;
}

// (1 - Phi(t)) / phi(t) = sqrt(pi/2) erfcx(t / sqrt 2): decreasing, ~1/t for large t, and infinite
// (it overflows) only below t = -37.7.
constexpr double mills_ratio(double t) {
  using namespace normal_parts;
  const double x = t / std::numbers::sqrt2;
  if (x > kCentre) return mills_of_upper(t);
  if (x < -kCentre) return kSqrtTwoPi * exp_half_square(t, 1) - mills_of_upper(-t);
  return kSqrtTwoPi * exp_half_square(t, 1) * (0.5 - x * erf_over_x(x * x) / 2);
}

// Phi^-1(p); -inf and inf at 0 and 1. For a small upper tail q use -normal_quantile(q).
// REQUIRES: 0 <= p <= 1. `square_root` rounds once, as IEEE says.
//
// M. J. Wichura, Algorithm AS241: the percentage points of the normal distribution, Applied
// Statistics 37 (1988).
template <class SquareRoot>
constexpr double normal_quantile(double p, const SquareRoot& square_root) {
  using normal_parts::polynomial;
  if (p != p) return p;
  if (p <= 0) return -std::numeric_limits<double>::infinity();
  if (p >= 1) return std::numeric_limits<double>::infinity();
  const double q = p - 0.5;
  if ((q < 0 ? -q : q) <= 0.425) {
    constexpr double kAbove[] = {2.5090809287301226727e+3, 3.3430575583588128105e+4,
                                 6.7265770927008700853e+4, 4.5921953931549871457e+4,
                                 1.3731693765509461125e+4, 1.9715909503065514427e+3,
                                 1.3314166789178437745e+2, 3.3871328727963666080e+0};
    constexpr double kBelow[] = {5.2264952788528545610e+3, 2.8729085735721942674e+4,
                                 3.9307895800092710610e+4, 2.1213794301586595867e+4,
                                 5.3941960214247511077e+3, 6.8718700749205790830e+2,
                                 4.2313330701600911252e+1, 1.0};
    const double r = 0.180625 - q * q;
    return q * (polynomial(kAbove, r) / polynomial(kBelow, r));
  }
  const double r = square_root(-portable_log(q < 0 ? p : 1 - p));
  double magnitude = 0;
  if (r <= 5) {
    constexpr double kAbove[] = {7.74545014278341407640e-4, 2.27238449892691845833e-2,
                                 2.41780725177450611770e-1, 1.27045825245236838258e+0,
                                 3.64784832476320460504e+0, 5.76949722146069140550e+0,
                                 4.63033784615654529590e+0, 1.42343711074968357734e+0};
    constexpr double kBelow[] = {1.05075007164441684324e-9, 5.47593808499534494600e-4,
                                 1.51986665636164571966e-2, 1.48103976427480074590e-1,
                                 6.89767334985100004550e-1, 1.67638483018380384940e+0,
                                 2.05319162663775882187e+0, 1.0};
    magnitude = polynomial(kAbove, r - 1.6) / polynomial(kBelow, r - 1.6);
  } else {
    constexpr double kAbove[] = {2.01033439929228813265e-7, 2.71155556874348757815e-5,
                                 1.24266094738807843860e-3, 2.65321895265761230930e-2,
                                 2.96560571828504891230e-1, 1.78482653991729133580e+0,
                                 5.46378491116411436990e+0, 6.65790464350110377720e+0};
    constexpr double kBelow[] = {2.04426310338993978564e-15, 1.42151175831644588870e-7,
                                 1.84631831751005468180e-5,  7.86869131145613259100e-4,
                                 1.48753612908506148525e-2,  1.36929880922735805310e-1,
                                 5.99832206555887937690e-1,  1.0};
    magnitude = polynomial(kAbove, r - 5) / polynomial(kBelow, r - 5);
  }
  return q < 0 ? -magnitude : magnitude;
}

// The same with the root of the C library.
double normal_quantile(double p);

}  // namespace slimgrad

#endif  // SLIMGRAD_MATH_NORMAL_H_
