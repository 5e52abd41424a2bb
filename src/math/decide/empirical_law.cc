// The law of the tensor at hand (pruning_rules.h). Building costs one pass over the 2,048 bins, a
// query is a look-up.
#include <array>

#include "math/decide/law_of_rule.h"

namespace slimgrad {
namespace {

constexpr int kBins = LogHistogram::kNumBins;

struct Bins {
  explicit Bins(const TensorStats& stats) {
    const double total = static_cast<double>(stats.histogram.total());
    for (int k = 0; k < kBins; ++k) {
      shares[k] = static_cast<double>(stats.histogram.counts[k]) / total;
      prefix[k + 1] = prefix[k];
      if (shares[k] != 0) prefix[k + 1] += moments_of_bin(k, shares[k], stats.max_abs);
    }
  }

  std::array<double, kBins> shares{};
  std::array<BinMoments, kBins + 1> prefix{};
};

using Rule = EmpiricalRule<const double*, const BinMoments*>;

class EmpiricalLaw final : private Bins, public LawOfRule<Rule> {
 public:
  explicit EmpiricalLaw(const TensorStats& stats)
      : Bins(stats),
        LawOfRule<Rule>(Rule(shares.data(), prefix.data(), stats.max_abs,
                             stats.mean_abs / (1 - stats.zero_fraction),
                             stats.mean_square / (1 - stats.zero_fraction),
                             stats.histogram.total() == stats.num_nonzero())) {}
};

}  // namespace

std::unique_ptr<PruningLaw> make_empirical_law(const TensorStats& stats) {
  return std::make_unique<EmpiricalLaw>(stats);
}

}  // namespace slimgrad
