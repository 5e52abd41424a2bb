// What stochastic pruning does to the non-zero magnitudes of a tensor, under some law for them. One
// interface for every law, so that thresholds, cosines and allocation are written once.
//
// With F the cdf of the magnitudes and M1, M2 the partial moments E[|x|^k; |x| <= alpha],
//   zeros      S'(alpha) = F - M1 / alpha         (of the non-zeros, as are the next two)
//   at         f(alpha)  = M1 / alpha = dS' / d ln alpha
//   survivors  p(alpha)  = 1 - F
//   nmse       E[|x| (alpha - |x|)^+] / E x^2 = (alpha M1 - M2) / E x^2
// Everything is a function of ln alpha: with log_std = 12, alpha itself spans hundreds of decades.
#ifndef SLIMGRAD_MATH_DECIDE_PRUNING_LAW_H_
#define SLIMGRAD_MATH_DECIDE_PRUNING_LAW_H_

#include <memory>
#include <string_view>

#include <slimgrad/tensor_stats.h>
#include <slimgrad/threshold.h>

#include "math/decide/pruning_rules.h"

namespace slimgrad {

class PruningLaw {
 public:
  virtual ~PruningLaw() = default;

  virtual PruningSplit split(double log_alpha) const = 0;
  virtual double nmse(double log_alpha) const = 0;

  // ln E|x| and ln E x^2 of the non-zeros.
  virtual double log_mean_abs() const = 0;
  virtual double log_mean_square() const = 0;

  // A lower bound for the ln alpha at which `zeros` of the non-zeros vanish. S' <= F, so the
  // quantile F^-1(zeros) is one.
  virtual double log_alpha_lower(double zeros) const = 0;
};

// Throws InvalidArgument, in the name of `op`, if the statistics cannot feed the method.
// REQUIRES: stats.num_nonzero() > 0.
std::unique_ptr<PruningLaw> make_pruning_law(const TensorStats& stats, ThresholdMethod method,
                                             std::string_view op);

std::unique_ptr<PruningLaw> make_lognormal_law(double log_mean, double log_std);
std::unique_ptr<PruningLaw> make_gennorm_law(double shape, double scale);
// REQUIRES: the histogram is not empty.
std::unique_ptr<PruningLaw> make_empirical_law(const TensorStats& stats);
std::unique_ptr<PruningLaw> make_mean_law(double mean_abs, double mean_square);

// solve_for_zeros() (pruning_rules.h).
double solve_log_alpha(const PruningLaw& law, double zeros, double kept);

}  // namespace slimgrad

#endif  // SLIMGRAD_MATH_DECIDE_PRUNING_LAW_H_
