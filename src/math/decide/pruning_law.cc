#include "math/decide/pruning_law.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/portable_math.h"
#include "math/measure/gennorm.h"
#include "math/measure/gennorm_fit.h"

namespace slimgrad {
namespace {

// exp(x) - 1 with full accuracy near zero: the rounding of y = exp(x) cancels in (y - 1) / ln y
// (W. Kahan).
double exp_less_one(double x) {
  const double y = portable_exp(x);
  if (y == 1) return x;
  return y < std::numeric_limits<double>::infinity() && y > 0 ? (y - 1) * (x / portable_log(y))
                                                              : y - 1;
}

// No magnitude exceeds alpha, by assumption: then M1 and M2 are the full moments.
class MeanLaw final : public PruningLaw {
 public:
  MeanLaw(double mean_abs, double mean_square)
      : log_mean_abs_(portable_log(mean_abs)), log_mean_square_(portable_log(mean_square)) {}

  PruningSplit split(double log_alpha) const override {
    const double at = std::min(1.0, portable_exp(log_mean_abs_ - log_alpha));
    return {.zeros = 1 - at, .at = at, .survivors = 0, .kept = at};
  }
  double nmse(double log_alpha) const override {
    return std::max(0.0, exp_less_one(log_alpha + log_mean_abs_ - log_mean_square_));
  }
  double log_mean_abs() const override { return log_mean_abs_; }
  double log_mean_square() const override { return log_mean_square_; }
  double log_alpha_lower(double zeros) const override {
    return log_mean_abs_ - portable_log(1 - zeros);
  }

 private:
  double log_mean_abs_, log_mean_square_;
};

}  // namespace

std::unique_ptr<PruningLaw> make_mean_law(double mean_abs, double mean_square) {
  return std::make_unique<MeanLaw>(mean_abs, mean_square);
}

std::unique_ptr<PruningLaw> make_pruning_law(const TensorStats& stats, ThresholdMethod method,
                                             std::string_view op) {
  const double nonzero_fraction = 1 - stats.zero_fraction;
  const auto check_histogram = [&] {
    check(stats.histogram.total() > 0, op, "statistics with a histogram for this method",
          "none: measure the tensor, or use the method lognormal");
  };
  const auto check_moments = [&] {
    check(stats.mean_abs > 0 && stats.mean_square > 0, op,
          "statistics with mean_abs and mean_square for this method",
          "none: measure the tensor, or use the method lognormal");
  };
  switch (method) {
    case ThresholdMethod::kEmpirical:
      check_histogram();
      check_moments();
      return make_empirical_law(stats);
    case ThresholdMethod::kLognormal:
      check(std::isfinite(stats.log_mean) && std::isfinite(stats.log_std) && stats.log_std >= 0, op,
            "finite log_mean and log_std >= 0", "log_mean ", stats.log_mean, ", log_std ",
            stats.log_std);
      return make_lognormal_law(stats.log_mean, stats.log_std);
    case ThresholdMethod::kGennorm: {
      check_histogram();
      const Gennorm law = fit_gennorm(stats);
      return make_gennorm_law(law.shape, law.scale);
    }
    case ThresholdMethod::kNormal:
      check_moments();
      // Scale sqrt(2) sigma makes the generalized normal of shape 2 the normal.
      return make_gennorm_law(2.0, std::sqrt(2 * stats.mean_square / nonzero_fraction));
    case ThresholdMethod::kMean:
      check_moments();
      return make_mean_law(stats.mean_abs / nonzero_fraction, stats.mean_square / nonzero_fraction);
  }
  throw_invalid(op, "a threshold method", static_cast<int>(method));
}

// Newton in ln alpha on the logarithm of the smaller of S' and 1 - S', whose slope is f over it:
// near both ends S' is a power of alpha, so that its logarithm is almost a straight line. A bracket
// keeps the iteration safe: below, log_alpha_lower; above, E|x| / (1 - S'), because
// 1 - S' = E min(|x|/alpha, 1) <= E|x| / alpha. The iterations are capped: at the last bit Newton
// may alternate between two neighbours for ever.
double solve_log_alpha(const PruningLaw& law, double zeros, double kept) {
  double low = law.log_alpha_lower(zeros);
  double high = std::max(low, law.log_mean_abs() - portable_log(kept));
  double log_alpha = low + (high - low) / 2;
  for (int i = 0; i < 200; ++i) {
    const PruningSplit split = law.split(log_alpha);
    const double difference =
        zeros < kept ? portable_log(zeros / split.zeros) : portable_log(split.kept / kept);
    (difference > 0 ? low : high) = log_alpha;
    const double slope = split.at / (zeros < kept ? split.zeros : split.kept);
    double next = log_alpha + difference / slope;
    if (!(next >= low && next <= high)) next = low + (high - low) / 2;
    const double step = std::abs(next - log_alpha);
    log_alpha = next;
    if (step <= 2e-16 * std::max(1.0, std::abs(log_alpha))) break;
  }
  return log_alpha;
}

}  // namespace slimgrad
