// Pruning of lognormal magnitudes: ln|x| ~ N(log_mean, log_std^2), sigma for log_std below.
//
// With a = (ln alpha - log_mean) / sigma, Eqs. (6)-(8) of the lognormal paper come out as
//   f = exp(sigma^2/2 - sigma a) Phi(a - sigma) = phi(a) Mills(sigma - a),
//   S' = Phi(a) - f,   p = Phi(-a).
// The paper prints Eq. (8) with sqrt(2 sigma) for sqrt(2) sigma, and in its form exp(sigma^2/2)
// meets a difference of error functions near one: in float64 S becomes 0.5 from sigma = 10 on. The
// forms below keep full accuracy for any sigma, because Mills ratios neither overflow nor vanish
// where they are used.
#include <algorithm>

#include "base/portable_math.h"
#include "math/decide/pruning_law.h"
#include "math/normal.h"

namespace slimgrad {
namespace {

// Below this argument a Mills ratio is so large that the exponential form is the better one.
constexpr double kMillsFloor = -5;

class LognormalLaw final : public PruningLaw {
 public:
  LognormalLaw(double log_mean, double log_std) : mu_(log_mean), sigma_(log_std) {}

  PruningSplit split(double log_alpha) const override {
    const double a = standardise(log_alpha);
    PruningSplit split;
    split.survivors = normal_cdf(-a);
    split.at = sigma_ - a > kMillsFloor
                   ? normal_density(a) * mills_ratio(sigma_ - a)
                   : portable_exp(sigma_ * (sigma_ / 2 - a)) * normal_cdf(a - sigma_);
    split.kept = split.survivors + split.at;
    // Left of the centre S' is a small difference of tails: take it between the Mills ratios, whose
    // difference loses nothing to the common factor phi(a).
    split.zeros =
        a <= 0 ? normal_density(a) * (mills_ratio(-a) - mills_ratio(sigma_ - a)) : 1 - split.kept;
    return split;
  }

  double nmse(double log_alpha) const override {
    const double a = standardise(log_alpha);
    if (sigma_ - a > kMillsFloor)
      return normal_density(a - 2 * sigma_) *
             (mills_ratio(sigma_ - a) - mills_ratio(2 * sigma_ - a));
    return portable_exp(sigma_ * (a - 1.5 * sigma_)) * normal_cdf(a - sigma_) -
           normal_cdf(a - 2 * sigma_);
  }

  double log_mean_abs() const override { return mu_ + sigma_ * sigma_ / 2; }
  double log_mean_square() const override { return 2 * mu_ + 2 * sigma_ * sigma_; }
  double log_alpha_lower(double zeros) const override {
    return mu_ + sigma_ * normal_quantile(zeros);
  }

 private:
  double standardise(double log_alpha) const { return (log_alpha - mu_) / sigma_; }

  double mu_, sigma_;
};

}  // namespace

std::unique_ptr<PruningLaw> make_lognormal_law(double log_mean, double log_std) {
  // Without spread there is one magnitude, and no alpha of interest lies below it.
  if (log_std == 0) return make_mean_law(portable_exp(log_mean), portable_exp(2 * log_mean));
  return std::make_unique<LognormalLaw>(log_mean, log_std);
}

}  // namespace slimgrad
