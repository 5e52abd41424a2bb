// A rule of pruning_rules.h as a PruningLaw.
#ifndef SLIMGRAD_MATH_DECIDE_LAW_OF_RULE_H_
#define SLIMGRAD_MATH_DECIDE_LAW_OF_RULE_H_

#include "math/decide/pruning_law.h"
#include "math/decide/pruning_rules.h"

namespace slimgrad {

template <class Rule>
class LawOfRule : public PruningLaw {
 public:
  explicit LawOfRule(const Rule& rule) : rule_(rule) {}

  PruningSplit split(double log_alpha) const override { return rule_.split(log_alpha); }
  double nmse(double log_alpha) const override { return rule_.nmse(log_alpha); }
  double log_mean_abs() const override { return rule_.log_mean_abs(); }
  double log_mean_square() const override { return rule_.log_mean_square(); }
  double log_alpha_lower(double zeros) const override { return rule_.log_alpha_lower(zeros); }

 private:
  Rule rule_;
};

}  // namespace slimgrad

#endif  // SLIMGRAD_MATH_DECIDE_LAW_OF_RULE_H_
