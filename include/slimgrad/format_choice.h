// Which low-bit format, and at which scale. Pure functions.
//
// The deviations here are of log2|x|, as in section 4 of the lognormal paper, and the names say so;
// everywhere else in slimgrad logarithms are natural: log2_std = log_std / ln 2.
#ifndef SLIMGRAD_FORMAT_CHOICE_H_
#define SLIMGRAD_FORMAT_CHOICE_H_

#include <string_view>

#include <slimgrad/float_format.h>
#include <slimgrad/tensor_stats.h>

namespace slimgrad {

// Expected relative error E|x_q - x|/|x| of rounding to nearest, for log2|x| ~ N(0, log2_std^2) on
// the grid at scale 1. Exact: a sum of closed forms over the cells of the grid.
double relative_error(const FloatFormat& format, double log2_std);

// The paper's Eq. (4) with its misprint corrected (2^n1 where it prints 2^n1 - 1). It takes the
// exponent for continuous and has one more binade at each end; 0.4 % off its own quantizer at
// n1 = 2, 6 % at n1 = 0.
double relative_error_closed_form(const FloatFormat& format, double log2_std);

// The split of `bits` (2 to 8) into exponent and mantissa with the least relative error.
FloatFormat best_format(int bits, double log2_std);

// The deviation that stands for a range of them: two thirds up, which is the one rule that
// reproduces every cell of the paper's Table 2.
constexpr double log2_std_of_range(double low, double high) { return low + 0.67 * (high - low); }

// The best format for a range of deviations: at log2_std_of_range().
FloatFormat best_format(int bits, double log2_std_low, double log2_std_high);

// The same for any distribution: least expected relative error on the tensor's histogram, each
// format at its own best power-of-two scale.
FloatFormat best_format(int bits, const TensorStats& stats);

enum class ScaleMethod {
  kMax,        // the largest grid value lands on max|x|
  kPredicted,  // the same with the maximum predicted from old statistics: exp(mu + sigma Phi^-1(1 -
               // 1/n))
  kError,      // the power of two with the least expected squared error on the histogram
};

std::string_view scale_method_name(ScaleMethod method);  // "max", "predicted", "error"
ScaleMethod parse_scale_method(std::string_view name);

// The scale at which to store a tensor with these statistics: a stored value is scale times a grid
// value. 1 if the tensor has no finite non-zero value.
double gradient_scale(const TensorStats& stats, const FloatFormat& format, ScaleMethod method);

}  // namespace slimgrad

#endif  // SLIMGRAD_FORMAT_CHOICE_H_
