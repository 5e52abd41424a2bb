// The laws of pruning_law.h that CPU and devices share, and the search for a threshold: `constexpr`
// rules, the same bits wherever they are compiled. Square roots are given, as functions that round
// once.
#ifndef SLIMGRAD_MATH_DECIDE_PRUNING_RULES_H_
#define SLIMGRAD_MATH_DECIDE_PRUNING_RULES_H_

#include <algorithm>
#include <limits>

#include <slimgrad/tensor_stats.h>

#include "base/portable_math.h"
#include "math/normal.h"

namespace slimgrad {

// Fractions of the non-zeros; they add up to one. `kept`, at + survivors = 1 - zeros, is given
// apart because for sparsities near one it has digits that 1 - zeros has lost.
struct PruningSplit {
  double zeros = 0;
  double at = 0;
  double survivors = 1;
  double kept = 1;
};

// ---- no magnitude exceeds alpha, by assumption: then M1 and M2 are the full moments ------------

// exp(x) - 1 with full accuracy near zero: the rounding of y = exp(x) cancels in (y - 1) / ln y
// (W. Kahan).
constexpr double exp_less_one(double x) {
  const double y = portable_exp(x);
  if (y == 1) return x;
  return y < std::numeric_limits<double>::infinity() && y > 0 ? (y - 1) * (x / portable_log(y))
                                                              : y - 1;
}

class MeanRule {
 public:
  constexpr MeanRule(double mean_abs, double mean_square)
      : log_mean_abs_(portable_log(mean_abs)), log_mean_square_(portable_log(mean_square)) {}

  constexpr PruningSplit split(double log_alpha) const {
    const double at = std::min(1.0, portable_exp(log_mean_abs_ - log_alpha));
    return {.zeros = 1 - at, .at = at, .survivors = 0, .kept = at};
  }
  constexpr double nmse(double log_alpha) const {
    return std::max(0.0, exp_less_one(log_alpha + log_mean_abs_ - log_mean_square_));
  }
  constexpr double log_mean_abs() const { return log_mean_abs_; }
  constexpr double log_mean_square() const { return log_mean_square_; }
  constexpr double log_alpha_lower(double zeros) const {
    return log_mean_abs_ - portable_log(1 - zeros);
  }

 private:
  double log_mean_abs_, log_mean_square_;
};

// ---- lognormal magnitudes: ln|x| ~ N(log_mean, log_std^2), sigma for log_std below -------------

// With a = (ln alpha - log_mean) / sigma, Eqs. (6)-(8) of the lognormal paper come out as
//   f = exp(sigma^2/2 - sigma a) Phi(a - sigma) = phi(a) Mills(sigma - a),
//   S' = Phi(a) - f,   p = Phi(-a).
// The paper prints Eq. (8) with sqrt(2 sigma) for sqrt(2) sigma, and in its form exp(sigma^2/2)
// meets a difference of error functions near one: in float64 S becomes 0.5 from sigma = 10 on. The
// forms below keep full accuracy for any sigma, because Mills ratios neither overflow nor vanish
// where they are used.
//
// REQUIRES: log_std > 0. Without spread there is one magnitude, and no alpha of interest lies below
// it: then the law is MeanRule(exp(log_mean), exp(2 log_mean)).
template <class SquareRoot>
class LognormalRule {
 public:
  constexpr LognormalRule(double log_mean, double log_std, const SquareRoot& square_root)
      : mu_(log_mean), sigma_(log_std), square_root_(square_root) {}

  constexpr PruningSplit split(double log_alpha) const {
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

  constexpr double nmse(double log_alpha) const {
    const double a = standardise(log_alpha);
    if (sigma_ - a > kMillsFloor)
      return normal_density(a - 2 * sigma_) *
             (mills_ratio(sigma_ - a) - mills_ratio(2 * sigma_ - a));
    return portable_exp(sigma_ * (a - 1.5 * sigma_)) * normal_cdf(a - sigma_) -
           normal_cdf(a - 2 * sigma_);
  }

  constexpr double log_mean_abs() const { return mu_ + sigma_ * sigma_ / 2; }
  constexpr double log_mean_square() const { return 2 * mu_ + 2 * sigma_ * sigma_; }
  constexpr double log_alpha_lower(double zeros) const {
    return mu_ + sigma_ * normal_quantile(zeros, square_root_);
  }

 private:
  // Below this argument a Mills ratio is so large that the exponential form is the better one.
  static constexpr double kMillsFloor = -5;

  constexpr double standardise(double log_alpha) const { return (log_alpha - mu_) / sigma_; }

  double mu_, sigma_;
  SquareRoot square_root_;
};

// ---- the tensor at hand, from its histogram ----------------------------------------------------

// Inside a bin the magnitudes are taken as log-uniform, which near the middle of a gradient's
// distribution they are; a bin is an eighth of an octave, so that the remaining error in S' is
// below 1e-4 for every smooth law (tested). Full bins enter through prefix sums of the count and
// the first two moments; only the bin that holds alpha is cut. Where the histogram counts every
// value its moments are scaled to the exact ones of the statistics, which mends the inside of the
// bins; where it is a sample they are not, since a heavy tail makes the mean of a sample worse than
// the sample of min(|x|, alpha) that S' needs.

// Moments of a part of the values: order 0, 1, 2.
struct BinMoments {
  double m0 = 0, m1 = 0, m2 = 0;

  constexpr BinMoments& operator+=(const BinMoments& other) {
    m0 += other.m0;
    m1 += other.m1;
    m2 += other.m2;
    return *this;
  }
};

// Moments of the part below t of one bin's law on [low, high).
constexpr BinMoments moments_below(double low, double high, double t) {
  if (low ==
      0) {  // The lowest bin reaches down to zero; uniform there, where log-uniform cannot be.
    return {t / high, t * t / (2 * high), t * t * t / (3 * high)};
  }
  const double width = portable_log(high / low);
  return {portable_log(t / low) / width, (t - low) / width, (t - low) * (t + low) / (2 * width)};
}

// Nothing lies above the maximum, so the bin that holds it ends there.
constexpr double end_of_bin(int k, double max_abs) {
  const double edge = LogHistogram::lower_edge(k + 1);
  return max_abs > LogHistogram::lower_edge(k) ? std::min(edge, max_abs) : edge;
}

// What a bin with a share of the values adds to the prefix sums.
constexpr BinMoments moments_of_bin(int k, double share, double max_abs) {
  const double high = end_of_bin(k, max_abs);
  const BinMoments bin = moments_below(LogHistogram::lower_edge(k), high, high);
  return {share, share * bin.m1, share * bin.m2};
}

// shares[k] is the share of the non-zeros in bin k, and prefix[k] the sum of moments_of_bin() below
// it, for k up to kNumBins: both stay with the caller.
template <class Shares, class Prefix>
class EmpiricalRule {
 public:
  static constexpr int kBins = LogHistogram::kNumBins;

  // The means are those of the non-zeros. `is_whole`: whether the histogram counts every value.
  constexpr EmpiricalRule(Shares shares, Prefix prefix, double max_abs, double mean_abs,
                          double mean_square, bool is_whole)
      : shares_(shares),
        prefix_(prefix),
        max_abs_(max_abs),
        mean_abs_(mean_abs),
        mean_square_(mean_square) {
    if (!is_whole) return;
    const BinMoments all = prefix_[kBins];
    scale_1_ = mean_abs_ / all.m1;
    scale_2_ = mean_square_ / all.m2;
  }

  constexpr PruningSplit split(double log_alpha) const {
    const double alpha = portable_exp(log_alpha);
    const BinMoments below = moments(alpha);
    const double survivors = std::max(0.0, 1 - below.m0);
    const double at = below.m1 / alpha;
    const double kept = std::min(1.0, survivors + at);
    return {.zeros = 1 - kept, .at = at, .survivors = survivors, .kept = kept};
  }

  constexpr double nmse(double log_alpha) const {
    const double alpha = portable_exp(log_alpha);
    const BinMoments below = moments(alpha);
    return std::max(0.0, (alpha * below.m1 - below.m2) / mean_square_);
  }

  constexpr double log_mean_abs() const { return portable_log(mean_abs_); }
  constexpr double log_mean_square() const { return portable_log(mean_square_); }

  // The lower edge of the bin that holds the quantile.
  constexpr double log_alpha_lower(double zeros) const {
    int first = 1, last = kBins + 1;  // where prefix sums reach `zeros`; they ascend
    while (first < last) {
      const int middle = (first + last) / 2;
      if (BinMoments(prefix_[middle]).m0 >= zeros)
        last = middle;
      else
        first = middle + 1;
    }
    const int k = std::min(first - 1, kBins - 1);
    return portable_log(std::max(LogHistogram::lower_edge(k), 0x1p-160));
  }

 private:
  constexpr BinMoments moments(double alpha) const {
    const int k = alpha < max_abs_ ? LogHistogram::bin_of(static_cast<float>(alpha)) : kBins;
    BinMoments sum = prefix_[k];
    if (k < kBins && shares_[k] > 0) {
      const double low = LogHistogram::lower_edge(k), high = end_of_bin(k, max_abs_);
      const double t = alpha < low ? low : high < alpha ? high : alpha;
      const BinMoments part = t > low ? moments_below(low, high, t) : BinMoments{0, 0, 0};
      const double share = shares_[k];
      sum.m0 += share * part.m0;
      sum.m1 += share * part.m1;
      sum.m2 += share * part.m2;
    }
    return {sum.m0, scale_1_ * sum.m1, scale_2_ * sum.m2};
  }

  Shares shares_;
  Prefix prefix_;
  double max_abs_, mean_abs_, mean_square_;
  double scale_1_ = 1, scale_2_ = 1;
};

// ---- the threshold -----------------------------------------------------------------------------

// The ln alpha at which a fraction zeros = 1 - kept of the non-zeros vanishes. Both are given for
// the digits, as above. REQUIRES: 0 < zeros, 0 < kept.
//
// Newton in ln alpha on the logarithm of the smaller of S' and 1 - S', whose slope is f over it:
// near both ends S' is a power of alpha, so that its logarithm is almost a straight line. A bracket
// keeps the iteration safe: below, log_alpha_lower; above, E|x| / (1 - S'), because
// 1 - S' = E min(|x|/alpha, 1) <= E|x| / alpha. The iterations are capped: at the last bit Newton
// may alternate between two neighbours for ever.
template <class Law>
constexpr double solve_for_zeros(const Law& law, double zeros, double kept) {
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
    const double step = next < log_alpha ? log_alpha - next : next - log_alpha;
    log_alpha = next;
    if (step <= 2e-16 * std::max(1.0, log_alpha < 0 ? -log_alpha : log_alpha)) break;
  }
  return log_alpha;
}

// The same for a fraction of all values, of which `zeros` are zeros already.
// REQUIRES: zeros < sparsity < 1.
template <class Law>
constexpr double solve_for_sparsity(const Law& law, double sparsity, double zeros) {
  return solve_for_zeros(law, (sparsity - zeros) / (1 - zeros), (1 - sparsity) / (1 - zeros));
}

}  // namespace slimgrad

#endif  // SLIMGRAD_MATH_DECIDE_PRUNING_RULES_H_
