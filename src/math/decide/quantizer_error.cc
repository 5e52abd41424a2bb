#include "math/decide/grid_error.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <vector>

#include "base/portable_math.h"

namespace slimgrad {
namespace {

constexpr int kBinsAnOctave = 8;
constexpr int kFirstNormalBin = kBinsAnOctave;  // before it lie the subnormals

// Integrals over [p, q] against the density 1/x, in units of the scale, of the error of what is
// rounded to v, and of what is rounded stochastically to l or u.
//
// |v - x| / x^2 has one sign, because v does not lie inside; x - l and u - x meet with the
// probabilities (u - x) / (u - l) and (x - l) / (u - l), so that the expected magnitude of the
// error is 2 (x - l)(u - x) / (u - l), and that of its square (x - l)(u - x).
double error_to(double v, double p, double q, ErrorKind kind) {
  const double log_ratio = portable_log(q / p);
  if (kind == ErrorKind::kSquared) return (q - p) * ((q + p) / 2 - 2 * v) + v * v * log_ratio;
  return std::abs(log_ratio - v * (1 / p - 1 / q));
}

double error_between(double l, double u, double p, double q, ErrorKind kind) {
  const double log_ratio = portable_log(q / p);
  if (kind == ErrorKind::kSquared) return (q - p) * (l + u - (q + p) / 2) - l * u * log_ratio;
  return 2 / (u - l) * ((l + u) * log_ratio - (q - p) - l * u * (1 / p - 1 / q));
}

class Errors {
 public:
  Errors(const Quantizer& quantizer, ErrorKind kind)
      : quantizer_(quantizer), kind_(kind), grid_(quantizer.format.values()) {}

  // Over [p, q], against the density 1/x.
  double over(double p, double q) const {
    double sum = 0;
    const double smallest = grid_[1], largest = grid_.back();
    if (p < smallest) {
      const double end = std::min(q, smallest);
      // Whatever the rounding: also just below the smallest value, where that one is nearest.
      sum += quantizer_.underflow == Underflow::kZero ? error_to(0, p, end, kind_)
                                                      : error_between(0, smallest, p, end, kind_);
      p = end;
    }
    auto above = std::upper_bound(grid_.begin(), grid_.end(), p);
    for (; p < q && above != grid_.end(); ++above) {
      const double l = *(above - 1), u = *above, end = std::min(q, u);
      sum += inside(l, u, p, end);
      p = end;
    }
    if (p < q) sum += error_to(largest, p, q, kind_);
    return sum;
  }

 private:
  // REQUIRES: l <= p < q <= u.
  double inside(double l, double u, double p, double q) const {
    if (quantizer_.rounding == Rounding::kStochastic) return error_between(l, u, p, q, kind_);
    const double middle = std::clamp((l + u) / 2, p, q);
    return (p < middle ? error_to(l, p, middle, kind_) : 0) +
           (middle < q ? error_to(u, middle, q, kind_) : 0);
  }

  const Quantizer& quantizer_;
  const ErrorKind kind_;
  const std::vector<double> grid_;
};

}  // namespace

double quantizer_error(const Quantizer& quantizer, const LogHistogram& histogram, ErrorKind kind) {
  const Errors errors(quantizer, kind);
  const double scale = quantizer.scale;
  const double smallest = quantizer.format.smallest(), largest = quantizer.format.largest();
  // Inside the grid's range the cells of an octave are those of the octave below, doubled: so are
  // the errors, and relative errors are the same.
  struct Covered {
    double error, low;
  };
  std::array<std::optional<Covered>, kBinsAnOctave> covered;
  double sum = 0;
  for (int bin = 0; bin < LogHistogram::kNumBins; ++bin) {
    if (histogram.counts[bin] == 0) continue;
    const auto count = static_cast<double>(histogram.counts[bin]);
    if (bin < kFirstNormalBin) {
      // Below every grid value, and so small that the square is nothing.
      if (kind == ErrorKind::kRelative)
        sum += count * (quantizer.underflow == Underflow::kZero ? 1 : 2);
      continue;
    }
    const double low = LogHistogram::lower_edge(bin) / scale;
    const double high = LogHistogram::lower_edge(bin + 1) / scale;
    const double mean_over = 1 / portable_log(high / low);
    if (low < smallest || high > largest) {
      sum += count * errors.over(low, high) * mean_over;
      continue;
    }
    std::optional<Covered>& known = covered[bin % kBinsAnOctave];
    if (!known) known = Covered{errors.over(low, high) * mean_over, low};
    const double ratio = kind == ErrorKind::kSquared ? low / known->low : 1;
    sum += count * known->error * ratio * ratio;
  }
  return kind == ErrorKind::kSquared ? sum * scale * scale : sum;
}

}  // namespace slimgrad
