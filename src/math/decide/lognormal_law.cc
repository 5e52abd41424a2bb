#include <cmath>

#include "math/decide/law_of_rule.h"

namespace slimgrad {

std::unique_ptr<PruningLaw> make_lognormal_law(double log_mean, double log_std) {
  if (log_std == 0) return make_mean_law(portable_exp(log_mean), portable_exp(2 * log_mean));
  const auto square_root = [](double x) { return std::sqrt(x); };
  using Rule = LognormalRule<decltype(square_root)>;
  return std::make_unique<LawOfRule<Rule>>(Rule(log_mean, log_std, square_root));
}

}  // namespace slimgrad
