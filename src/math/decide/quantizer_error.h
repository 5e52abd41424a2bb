// The expected error of a quantizer, at any scale and under its own rounding and underflow, on the
// values of a histogram. grid_error.h does the same for rounding to nearest at powers of two, all
// of which it can compare at little cost.
#ifndef SLIMGRAD_MATH_DECIDE_QUANTIZER_ERROR_H_
#define SLIMGRAD_MATH_DECIDE_QUANTIZER_ERROR_H_

#include <slimgrad/tensor_stats.h>
#include <slimgrad/treatment.h>

#include "math/decide/grid_error.h"

namespace slimgrad {

// The sum over the histogram's values of E|x_q - x| / |x| or of E(x_q - x)^2, over the random
// draws. Values are log-uniform inside a bin, which makes every integral closed; subnormal float32
// magnitudes count as underflow. Costs an integral for each cell of one octave of the grid, and a
// few operations a bin that is not empty: some microseconds.
double quantizer_error(const Quantizer& quantizer, const LogHistogram& histogram, ErrorKind kind);

}  // namespace slimgrad

#endif  // SLIMGRAD_MATH_DECIDE_QUANTIZER_ERROR_H_
