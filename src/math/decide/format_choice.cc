#include <slimgrad/format_choice.h>

#include <algorithm>
#include <boost/math/special_functions/expint.hpp>
#include <cmath>
#include <limits>
#include <numbers>
#include <optional>

#include "base/check.h"
#include "base/names.h"
#include "base/portable_math.h"
#include "math/decide/grid_error.h"
#include "math/normal.h"
#include "math/quiet_policy.h"

namespace slimgrad {
namespace {

constexpr NameTable<SplitMethod, 3> kSplitMethodNames = {{
    {SplitMethod::kEmpirical, "empirical"},
    {SplitMethod::kLognormal, "lognormal"},
    {SplitMethod::kNormal, "normal"},
}};

constexpr NameTable<ScaleMethod, 3> kScaleMethodNames = {{
    {ScaleMethod::kMax, "max"},
    {ScaleMethod::kPredicted, "predicted"},
    {ScaleMethod::kError, "error"},
}};

void check_std(double log2_std, const char* op) {
  check(std::isfinite(log2_std) && log2_std > 0, op, "a finite log2_std > 0", log2_std);
}

// Phi(b) - Phi(a) without cancellation in the upper tail. REQUIRES: a <= b.
double normal_between(double a, double b) {
  return a > 0 ? normal_cdf(-a) - normal_cdf(-b) : normal_cdf(b) - normal_cdf(a);
}

// Integrals of the density of x = 2^L, L ~ N(0, sigma^2), and of 1/x against it, between two
// values: completing the square gives E[2^(-c L); p < L < q] = exp((c s)^2 / 2) (Phi(q/sigma + c s)
// - Phi(p/sigma + c s)) with s = sigma ln 2.
class LognormalIntegrals {
 public:
  explicit LognormalIntegrals(double log2_std) : sigma_(log2_std) {}

  double mass(double low, double high) const {
    return normal_between(portable_log2(low) / sigma_, portable_log2(high) / sigma_);
  }
  double inverse(double low, double high) const {
    const double s = sigma_ * std::numbers::ln2;
    return portable_exp(s * s / 2) *
           normal_between(portable_log2(low) / sigma_ + s, portable_log2(high) / sigma_ + s);
  }

 private:
  double sigma_;
};

// The same for |x|, x ~ N(0, std^2): the density of |x| is 2 phi(x / std) / std, and with t = x^2 /
// (2 std^2) its integral against 1/x is that of exp(-t) / t, over std sqrt(2 pi).
class NormalIntegrals {
 public:
  explicit NormalIntegrals(double std) : std_(std) {}

  double mass(double low, double high) const { return 2 * normal_between(low / std_, high / std_); }
  double inverse(double low, double high) const {
    return (tail(low) - tail(high)) / (std_ * std::sqrt(2 * std::numbers::pi));
  }

 private:
  double tail(double x) const {
    const double t = x * x / (2 * std_ * std_);
    return t < 700 ? boost::math::expint(1, t, QuietPolicy()) : 0;  // E_1; exp(-700) is nothing
  }

  double std_;
};

// E|x_q - x| / |x| on the grid at scale 1. Between neighbours l < u of the grid the error is 1 -
// l/x up to the midpoint and u/x - 1 from there; below the smallest value it is one, above the
// largest 1 - top/x.
template <typename Law>
double nearest_error(const FloatFormat& format, const Law& law) {
  const std::vector<double> grid = format.values();
  const double infinity = std::numeric_limits<double>::infinity();
  double error = law.mass(0, format.smallest());
  for (std::size_t i = 1; i + 1 < grid.size(); ++i) {
    const double l = grid[i], u = grid[i + 1], middle = (l + u) / 2;
    error += law.mass(l, middle) - l * law.inverse(l, middle);
    error += u * law.inverse(middle, u) - law.mass(middle, u);
  }
  const double top = format.largest();
  return error + law.mass(top, infinity) - top * law.inverse(top, infinity);
}

// Nothing for an empty histogram.
std::optional<ScaleExponents> useful_scale_exponents(const FloatFormat& format,
                                                     const LogHistogram& histogram) {
  const auto occupied = [](std::uint64_t count) { return count > 0; };
  const auto first = std::find_if(histogram.counts.begin(), histogram.counts.end(), occupied);
  if (first == histogram.counts.end()) return std::nullopt;
  const auto last = std::find_if(histogram.counts.rbegin(), histogram.counts.rend(), occupied);
  return useful_scale_exponents(grid_of(format), static_cast<int>(first - histogram.counts.begin()),
                                static_cast<int>(histogram.counts.rend() - last - 1));
}

ErrorKind kind_of(ErrorMeasure error) {
  return error == ErrorMeasure::kRelative ? ErrorKind::kRelative : ErrorKind::kSquared;
}

// The format of this width with the least error(format).
template <typename Error>
FloatFormat least_error_format(int bits, Error error) {
  check(bits >= 2 && bits <= 8, "best_format", "2 to 8 bits", bits);
  FloatFormat best(1, bits - 2);
  double least = std::numeric_limits<double>::infinity();
  for (int exponent_bits = 1; exponent_bits <= bits - 1; ++exponent_bits) {
    const FloatFormat format(exponent_bits, bits - 1 - exponent_bits);
    const double e = error(format);
    if (e < least) {
      least = e;
      best = format;
    }
  }
  return best;
}

}  // namespace

double relative_error(const FloatFormat& format, double log2_std) {
  check_std(log2_std, "relative_error");
  return nearest_error(format, LognormalIntegrals(log2_std));
}

double relative_error_of_normal(const FloatFormat& format, double std) {
  check(std::isfinite(std) && std > 0, "relative_error_of_normal", "a finite std > 0", std);
  return nearest_error(format, NormalIntegrals(std));
}

double relative_error_closed_form(const FloatFormat& format, double log2_std) {
  check_std(log2_std, "relative_error_closed_form");
  const double e_max = format.bias();
  const double sigma = log2_std, s = sigma * std::numbers::ln2;
  const double inside = 2 * normal_cdf(e_max / sigma) - 1;
  const double outside = normal_cdf(-e_max / sigma);
  // 2^(E_max - 1) exp(s^2/2) (erf(...) - 1), with the tail instead of the difference from one.
  const double saturation =
      std::ldexp(portable_exp(s * s / 2) * normal_cdf(-(s + e_max / sigma)), format.bias());
  return inside / (8 * std::numbers::ln2 * std::ldexp(1.0, format.mantissa_bits())) + 2 * outside -
         saturation;
}

FloatFormat best_format(int bits, double log2_std) {
  check_std(log2_std, "best_format");
  return least_error_format(
      bits, [&](const FloatFormat& format) { return relative_error(format, log2_std); });
}

FloatFormat best_format(int bits, double log2_std_low, double log2_std_high) {
  check_std(log2_std_low, "best_format");
  check(log2_std_high >= log2_std_low, "best_format", "a range with low <= high", log2_std_low,
        " to ", log2_std_high);
  return best_format(bits, log2_std_of_range(log2_std_low, log2_std_high));
}

FloatFormat best_format_of_normal(int bits, double std) {
  check(std::isfinite(std) && std > 0, "best_format", "a finite std > 0", std);
  return least_error_format(
      bits, [&](const FloatFormat& format) { return relative_error_of_normal(format, std); });
}

std::string_view split_method_name(SplitMethod method) {
  return name_of(kSplitMethodNames, method);
}

SplitMethod parse_split_method(std::string_view name) {
  return parse_name(kSplitMethodNames, "best_format", "method", name);
}

FloatFormat best_format(int bits, const TensorStats& stats, const SplitOptions& options) {
  // A tensor of equal magnitudes has no spread; the least that the closed forms are asked for.
  const double log2_std = std::max(0.05, stats.log_std / std::numbers::ln2);
  if (options.method == SplitMethod::kLognormal) return best_format(bits, log2_std);
  if (options.method == SplitMethod::kNormal) return best_format_of_normal(bits, log2_std);
  check(stats.histogram.total() > 0, "best_format", "statistics with a histogram", "none");
  return least_error_format(bits, [&](const FloatFormat& format) {
    const double scale = options.fixed_scale > 0 ? options.fixed_scale
                                                 : gradient_scale(stats, format, options.scale);
    const Quantizer quantizer = {format, scale, options.rounding, options.underflow};
    return quantizer_error(quantizer, stats.histogram, kind_of(options.error));
  });
}

double expected_error(const TensorStats& stats, const Quantizer& quantizer, ErrorMeasure error) {
  const auto count = static_cast<double>(stats.histogram.total());
  check(count > 0, "expected_error", "statistics with a histogram", "none");
  const double mean = quantizer_error(quantizer, stats.histogram, kind_of(error)) / count;
  if (error == ErrorMeasure::kRelative) return mean;
  // mean_square counts zeros, the histogram does not.
  return mean * (1 - stats.zero_fraction) / stats.mean_square;
}

std::string_view scale_method_name(ScaleMethod method) {
  return name_of(kScaleMethodNames, method);
}

ScaleMethod parse_scale_method(std::string_view name) {
  return parse_name(kScaleMethodNames, "gradient_scale", "method", name);
}

double gradient_scale(const TensorStats& stats, const FloatFormat& format, ScaleMethod method) {
  if (stats.zero_fraction == 1 || stats.num_finite() == 0) return 1;
  switch (method) {
    case ScaleMethod::kMax:
      check(stats.max_abs > 0, "gradient_scale", "statistics with max_abs for the method max",
            stats.max_abs);
      return stats.max_abs / format.largest();
    case ScaleMethod::kPredicted: {
      // The expected rank of the largest of n values is about the 1 - 1/n quantile.
      const double n = std::max(2.0, static_cast<double>(stats.num_nonzero()));
      const double log_max = stats.log_mean - stats.log_std * normal_quantile(1 / n);
      return portable_exp(log_max) / format.largest();
    }
    case ScaleMethod::kError: {
      const auto range = useful_scale_exponents(format, stats.histogram);
      check(range.has_value(), "gradient_scale", "statistics with a histogram for the method error",
            "none");
      const HistogramGridError error(format, stats.histogram, ErrorKind::kSquared);
      return std::ldexp(1.0, error.best_scale_exponent(range->first, range->last));
    }
  }
  throw_invalid("gradient_scale", "a scale method", static_cast<int>(method));
}

}  // namespace slimgrad
