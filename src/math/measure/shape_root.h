// The one way in which equations for the shape of a generalized normal are solved.
#ifndef SLIMGRAD_MATH_MEASURE_SHAPE_ROOT_H_
#define SLIMGRAD_MATH_MEASURE_SHAPE_ROOT_H_

#include <cmath>

#include "math/measure/gennorm.h"
#include "math/newton.h"

namespace slimgrad {

// falling_root() over ln shape, in which the equations are nearly straight, between the smallest
// and the largest shape that fits return; exactly these where there is no root in between.
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

#endif  // SLIMGRAD_MATH_MEASURE_SHAPE_ROOT_H_
