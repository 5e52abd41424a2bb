// The standard normal law, accurate to a few ulp in both tails.
//
// The tails are where the closed forms of pruning and of the float formats live: there 1 - Phi(t)
// cancels and phi(t) underflows, but their quotient, the Mills ratio, is a tame function. Formulas
// that are written with it neither cancel nor overflow. All functions are pure and the same bits on
// every machine; NaN gives NaN.
#ifndef SLIMGRAD_MATH_NORMAL_H_
#define SLIMGRAD_MATH_NORMAL_H_

namespace slimgrad {

// phi(t) = exp(-t^2 / 2) / sqrt(2 pi).
double normal_density(double t);

// Phi(t), to full relative accuracy for t -> -inf. The upper tail is normal_cdf(-t).
double normal_cdf(double t);

// Phi^-1(p); -inf and inf at 0 and 1. For a small upper tail q use -normal_quantile(q).
// REQUIRES: 0 <= p <= 1.
double normal_quantile(double p);

// (1 - Phi(t)) / phi(t) = sqrt(pi/2) erfcx(t / sqrt 2): decreasing, ~1/t for large t, and infinite
// (it overflows) only below t = -37.7.
double mills_ratio(double t);

}  // namespace slimgrad

#endif  // SLIMGRAD_MATH_NORMAL_H_
