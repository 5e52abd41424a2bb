// Pruning of generalized-normal magnitudes; shape 2 is the normal. The partial moments are
// incomplete gamma functions, and nothing cancels badly: S' is at least a constant fraction of F.
#include <algorithm>
#include <cmath>

#include "math/decide/pruning_law.h"
#include "math/measure/gennorm.h"

namespace slimgrad {
namespace {

class GennormLaw final : public PruningLaw {
 public:
  explicit GennormLaw(const Gennorm& law)
      : law_(law),
        log_mean_abs_(std::log(gennorm_moment(law, 1))),
        log_mean_square_(std::log(gennorm_moment(law, 2))) {}

  PruningSplit split(double log_alpha) const override {
    const double alpha = std::exp(log_alpha);
    const double at = gennorm_lower_moment(law_, 1, alpha) / alpha;
    const double survivors = gennorm_upper_moment(law_, 0, alpha);
    return {.zeros = std::max(0.0, gennorm_lower_moment(law_, 0, alpha) - at),
            .at = at,
            .survivors = survivors,
            .kept = survivors + at};
  }
  double nmse(double log_alpha) const override {
    const double alpha = std::exp(log_alpha);
    const double error =
        alpha * gennorm_lower_moment(law_, 1, alpha) - gennorm_lower_moment(law_, 2, alpha);
    return std::max(0.0, error * std::exp(-log_mean_square_));
  }
  double log_mean_abs() const override { return log_mean_abs_; }
  double log_mean_square() const override { return log_mean_square_; }
  double log_alpha_lower(double zeros) const override {
    // The density is largest at zero, so F(alpha) <= 2 density(0) alpha.
    return std::log(zeros / (2 * gennorm_density(law_, 0)));
  }

 private:
  Gennorm law_;
  double log_mean_abs_, log_mean_square_;
};

}  // namespace

std::unique_ptr<PruningLaw> make_gennorm_law(double shape, double scale) {
  return std::make_unique<GennormLaw>(Gennorm{shape, scale});
}

}  // namespace slimgrad
