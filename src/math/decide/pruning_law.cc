#include "math/decide/pruning_law.h"

#include <cmath>

#include "base/check.h"
#include "math/decide/law_of_rule.h"
#include "math/measure/gennorm.h"
#include "math/measure/gennorm_fit.h"

namespace slimgrad {
std::unique_ptr<PruningLaw> make_mean_law(double mean_abs, double mean_square) {
  return std::make_unique<LawOfRule<MeanRule>>(MeanRule(mean_abs, mean_square));
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

double solve_log_alpha(const PruningLaw& law, double zeros, double kept) {
  return solve_for_zeros(law, zeros, kept);
}

}  // namespace slimgrad
