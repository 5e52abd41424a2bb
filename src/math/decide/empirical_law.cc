// Pruning of the tensor at hand, from its histogram.
//
// Inside a bin the magnitudes are taken as log-uniform, which near the middle of a gradient's
// distribution they are; a bin is an eighth of an octave, so that the remaining error in S' is
// below 1e-4 for every smooth law (tested). Full bins enter through prefix sums of the count and
// the first two moments; only the bin that holds alpha is cut. Where the histogram counts every
// value its moments are scaled to the exact ones of the statistics, which mends the inside of the
// bins; where it is a sample they are not, since a heavy tail makes the mean of a sample worse than
// the sample of min(|x|, alpha) that S' needs. Building costs one pass over the 2,048 bins, a query
// is a look-up.
#include <algorithm>
#include <array>

#include "base/portable_math.h"
#include "math/decide/pruning_law.h"

namespace slimgrad {
namespace {

constexpr int kBins = LogHistogram::kNumBins;

// Moments of one bin's law on [low, high): order 0, 1, 2 of the part below t.
struct BinMoments {
  double m0, m1, m2;
};

BinMoments moments_below(double low, double high, double t) {
  if (low ==
      0) {  // The lowest bin reaches down to zero; uniform there, where log-uniform cannot be.
    return {t / high, t * t / (2 * high), t * t * t / (3 * high)};
  }
  const double width = portable_log(high / low);
  return {portable_log(t / low) / width, (t - low) / width, (t - low) * (t + low) / (2 * width)};
}

class EmpiricalLaw final : public PruningLaw {
 public:
  explicit EmpiricalLaw(const TensorStats& stats) : max_abs_(stats.max_abs) {
    const double total = static_cast<double>(stats.histogram.total());
    const double nonzero_fraction = 1 - stats.zero_fraction;
    mean_abs_ = stats.mean_abs / nonzero_fraction;
    mean_square_ = stats.mean_square / nonzero_fraction;
    for (int k = 0; k < kBins; ++k) {
      counts_[k] = static_cast<double>(stats.histogram.counts[k]) / total;
      prefix_[k + 1] = prefix_[k];
      if (counts_[k] == 0) continue;
      const BinMoments bin = moments_below(low(k), high(k), high(k));
      prefix_[k + 1].m0 += counts_[k];
      prefix_[k + 1].m1 += counts_[k] * bin.m1;
      prefix_[k + 1].m2 += counts_[k] * bin.m2;
    }
    if (stats.histogram.total() == stats.num_nonzero()) {
      scale_1_ = mean_abs_ / prefix_[kBins].m1;
      scale_2_ = mean_square_ / prefix_[kBins].m2;
    }
  }

  PruningSplit split(double log_alpha) const override {
    const double alpha = portable_exp(log_alpha);
    const BinMoments below = moments(alpha);
    const double survivors = std::max(0.0, 1 - below.m0);
    const double at = below.m1 / alpha;
    const double kept = std::min(1.0, survivors + at);
    return {.zeros = 1 - kept, .at = at, .survivors = survivors, .kept = kept};
  }

  double nmse(double log_alpha) const override {
    const double alpha = portable_exp(log_alpha);
    const BinMoments below = moments(alpha);
    return std::max(0.0, (alpha * below.m1 - below.m2) / mean_square_);
  }

  double log_mean_abs() const override { return portable_log(mean_abs_); }
  double log_mean_square() const override { return portable_log(mean_square_); }

  double log_alpha_lower(double zeros) const override {
    // The lower edge of the bin that holds the quantile.
    const auto above = std::find_if(prefix_.begin() + 1, prefix_.end(),
                                    [&](const BinMoments& sum) { return sum.m0 >= zeros; });
    const int k = std::min<int>(static_cast<int>(above - prefix_.begin()) - 1, kBins - 1);
    return portable_log(std::max(low(k), 0x1p-160));
  }

 private:
  static double low(int k) { return LogHistogram::lower_edge(k); }
  // Nothing lies above the maximum, so the bin that holds it ends there.
  double high(int k) const {
    const double edge = LogHistogram::lower_edge(k + 1);
    return max_abs_ > low(k) ? std::min(edge, max_abs_) : edge;
  }

  BinMoments moments(double alpha) const {
    const int k = alpha < max_abs_ ? LogHistogram::bin_of(static_cast<float>(alpha)) : kBins;
    BinMoments sum = prefix_[k];
    if (k < kBins && counts_[k] > 0) {
      const double t = std::clamp(alpha, low(k), high(k));
      const BinMoments part = t > low(k) ? moments_below(low(k), high(k), t) : BinMoments{0, 0, 0};
      sum.m0 += counts_[k] * part.m0;
      sum.m1 += counts_[k] * part.m1;
      sum.m2 += counts_[k] * part.m2;
    }
    return {sum.m0, scale_1_ * sum.m1, scale_2_ * sum.m2};
  }

  double max_abs_, mean_abs_, mean_square_;
  double scale_1_ = 1, scale_2_ = 1;
  std::array<double, kBins> counts_{};
  std::array<BinMoments, kBins + 1> prefix_{};
};

}  // namespace

std::unique_ptr<PruningLaw> make_empirical_law(const TensorStats& stats) {
  return std::make_unique<EmpiricalLaw>(stats);
}

}  // namespace slimgrad
