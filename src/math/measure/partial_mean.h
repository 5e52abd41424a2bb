// First and second moments of the families, whole and in part: what Wasserstein distances are made
// of. Infinity where a moment does not exist or overflows.
#ifndef SLIMGRAD_MATH_MEASURE_PARTIAL_MEAN_H_
#define SLIMGRAD_MATH_MEASURE_PARTIAL_MEAN_H_

#include <slimgrad/distribution.h>

namespace slimgrad {

// E X: 0 for the symmetric families with a first moment; infinity for Cauchy's.
double mean_of(const Distribution& law);
double mean_square_of(const Distribution& law);

// E[X; X <= x], the integral of t f(t) up to x. For a symmetric law it is even in x and never
// positive. REQUIRES: mean_of(law) is finite.
double partial_mean(const Distribution& law, double x);

// E[X; X > x] = mean - partial_mean, without cancellation. REQUIRES: as above.
double upper_partial_mean(const Distribution& law, double x);

}  // namespace slimgrad

#endif  // SLIMGRAD_MATH_MEASURE_PARTIAL_MEAN_H_
