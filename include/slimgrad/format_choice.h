// Which low-bit format, and at which scale. Pure functions.
//
// The default chooses both from what was measured: the split with the least error on the tensor's
// own histogram, at the scale that it will get, under the rounding that will be used. The closed
// forms know one number, the deviation of log2|x|, and assume a lognormal around it: where a few
// values stand far above the rest, as in the gradient of a softmax, they spend too few bits on
// exponents and the bulk underflows.
//
// The deviations here are of log2|x|, as in section 4 of the lognormal paper, and the names say so;
// everywhere else in slimgrad logarithms are natural: log2_std = log_std / ln 2.
#ifndef SLIMGRAD_FORMAT_CHOICE_H_
#define SLIMGRAD_FORMAT_CHOICE_H_

#include <string_view>

#include <slimgrad/float_format.h>
#include <slimgrad/tensor_stats.h>
#include <slimgrad/treatment.h>

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

// The same as relative_error() and best_format() if x itself were normal, x ~ N(0, std^2), on the
// grid at scale 1: the assumption that the paper argues against (its Figure 3c), for comparison.
// Its choice of a format has ever fewer exponent bits as the spread grows.
double relative_error_of_normal(const FloatFormat& format, double std);
FloatFormat best_format_of_normal(int bits, double std);

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
double gradient_scale(const TensorStats& stats, const FloatFormat& format,
                      ScaleMethod method = ScaleMethod::kMax);

enum class SplitMethod {
  kEmpirical,  // least error on the histogram, at the scale that the format would get
  kLognormal,  // best_format() of the measured deviation: the paper's rule
  kNormal,     // best_format_of_normal() of the same number
};

std::string_view split_method_name(SplitMethod method);  // "empirical", "lognormal", "normal"
SplitMethod parse_split_method(std::string_view name);

enum class ErrorMeasure {
  kRelative,  // mean of |x_q - x| / |x| over non-zero values
  kSquared,   // mean of (x_q - x)^2, over the mean square
};

// What a split is chosen for. The first is all that the closed forms look at.
struct SplitOptions {
  SplitMethod method = SplitMethod::kEmpirical;
  ScaleMethod scale = ScaleMethod::kMax;
  double fixed_scale = 0;  // positive: used instead
  Rounding rounding = Rounding::kStochastic;
  Underflow underflow = Underflow::kStochastic;
  ErrorMeasure error = ErrorMeasure::kRelative;
};

// The split of `bits` (2 to 8) for a tensor with these statistics. Costs some ten microseconds.
// REQUIRES: what the scale method wants of the statistics; a histogram.
FloatFormat best_format(int bits, const TensorStats& stats, const SplitOptions& options = {});

// The error that a quantizer is expected to make on a tensor with these statistics.
double expected_error(const TensorStats& stats, const Quantizer& quantizer,
                      ErrorMeasure error = ErrorMeasure::kRelative);

}  // namespace slimgrad

#endif  // SLIMGRAD_FORMAT_CHOICE_H_
