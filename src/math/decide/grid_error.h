// Errors of rounding to a FloatFormat's grid, in closed form: under a lognormal, and on a
// histogram.
#ifndef SLIMGRAD_MATH_DECIDE_GRID_ERROR_H_
#define SLIMGRAD_MATH_DECIDE_GRID_ERROR_H_

#include <array>

#include <slimgrad/float_format.h>
#include <slimgrad/tensor_stats.h>
#include <slimgrad/treatment.h>

#include "math/decide/grid_rules.h"

namespace slimgrad {

// The total error, over the histogram's values, of rounding to nearest on the grid at scale
// 2^scale_exponent: what lies below the smallest grid value becomes zero, what lies above the
// largest saturates. Values are log-uniform inside a bin. Subnormal float32 magnitudes count as
// underflow at every scale. Building costs one pass over the histogram, a query one over the
// octaves.
class HistogramGridError {
 public:
  HistogramGridError(const FloatFormat& format, const LogHistogram& histogram, ErrorKind kind);

  double at(int scale_exponent) const;

  // The scale exponent in [first, last] with the least error; the first of equals.
  // REQUIRES: first <= last.
  int best_scale_exponent(int first, int last) const;

 private:
  FormatGrid grid_;
  ErrorKind kind_;
  std::array<OctaveErrors, OctaveErrors::kOctaves> octaves_{};
};

// The same for any quantizer, at any scale and under its own rounding and underflow; the class
// above compares all powers of two at little cost. The sum over the histogram's values of E|x_q -
// x| / |x| or of E(x_q - x)^2, over the random draws. Values are log-uniform inside a bin, which
// makes every integral closed; subnormal float32 magnitudes count as underflow. Costs an integral
// for each cell of one octave of the grid, and a few operations a bin that is not empty: some
// microseconds.
double quantizer_error(const Quantizer& quantizer, const LogHistogram& histogram, ErrorKind kind);

}  // namespace slimgrad

#endif  // SLIMGRAD_MATH_DECIDE_GRID_ERROR_H_
