#include "math/coding/level_law.h"

#include <algorithm>

#include "base/portable_math.h"
#include "math/coding/model_table.h"

namespace slimgrad {
namespace {

// Tails of magnitudes, for ascending t: each question goes on where the last one stopped.
class BinnedTails {
 public:
  BinnedTails(std::span<const MagnitudeBin> bins, double step) : bins_(bins), step_(step) {
    for (const MagnitudeBin& bin : bins) {
      count_above_ += bin.count;
      sum_above_ += bin.count * (0.5 * (bin.low + bin.high));
    }
    if (!bins_.empty()) leave_first();
  }

  double above(double t) {
    if (!reach(t * step_)) return 0.0;
    const MagnitudeBin& bin = bins_.front();
    const double part = (bin.high - std::max(bin.low, t * step_)) / (bin.high - bin.low);
    return count_above_ + bin.count * part;
  }
  double excess(double t) {
    if (!reach(t * step_)) return 0.0;
    const MagnitudeBin& bin = bins_.front();
    const double left = bin.high - std::max(bin.low, t * step_);
    const double mean = bin.high - 0.5 * left - t * step_;  // of those beyond t
    const double inside = bin.count * (left / (bin.high - bin.low)) * mean;
    return (sum_above_ - count_above_ * (t * step_) + inside) / step_;
  }

 private:
  // What is above the first bin.
  void leave_first() {
    count_above_ -= bins_.front().count;
    sum_above_ -= bins_.front().count * (0.5 * (bins_.front().low + bins_.front().high));
  }
  // Makes the bin that holds x, or is the first above it, the first one; false if there is none.
  bool reach(double x) {
    while (!bins_.empty() && bins_.front().high <= x) {
      bins_ = bins_.subspan(1);
      if (!bins_.empty()) leave_first();
    }
    return !bins_.empty();
  }

  std::span<const MagnitudeBin> bins_;
  double step_;
  double count_above_ = 0, sum_above_ = 0;
};

// The same of a generalized normal law, whose mass of one sign is 1/2. Z = (|x| / scale)^shape has
// a Gamma(1 / shape) law, and |x| weighted by itself a Gamma(2 / shape) law.
class GennormTails {
 public:
  GennormTails(double shape, double scale, double step)
      : shape_(shape),
        scale_(scale / step),
        mean_(scale_ *
              portable_exp(portable_log_gamma(2.0 / shape) - portable_log_gamma(1.0 / shape))) {}

  double above(double t) const { return t > 0.0 ? 0.5 * upper(1.0 / shape_, t) : 0.5; }
  double excess(double t) const {
    if (t <= 0.0) return 0.5 * mean_;
    return 0.5 * std::max(0.0, mean_ * upper(2.0 / shape_, t) - t * upper(1.0 / shape_, t));
  }

 private:
  double upper(double a, double t) const {
    const double exponent = shape_ * portable_log(t / scale_);
    return exponent > 6.6 ? 0.0 : portable_incomplete_gamma(a, portable_exp(exponent)).q;
  }

  double shape_, scale_, mean_;
};

// Adds the masses of one sign, which is 1 or -1; returns what is left for zero of `count`.
template <typename Tails>
double add_side(Tails tails, double count, Rounding rounding, int sign, SymbolMasses& masses) {
  // In ascending order: what is beyond the first level of a symbol, from its left and its right
  // for stochastic rounding.
  const auto left = [&](int distance) {
    return rounding == Rounding::kNearest ? tails.above(first_level(distance) - 0.5)
                                          : tails.excess(first_level(distance) - 1);
  };
  const auto right = [&](int distance) {
    return rounding == Rounding::kNearest ? 0.0 : tails.excess(first_level(distance));
  };
  double before = left(1), at = right(1);
  const double rest = std::max(0.0, count - (before - at));
  for (int distance = 1; distance <= kOpenCentre && before > 0.0; ++distance) {
    const bool last = distance == kOpenCentre;
    // The level below the next symbol is often this one, whose excess is known.
    const bool adjacent = rounding != Rounding::kNearest && distance <= kLargestDirectLevel;
    const double next_before = last ? 0.0 : adjacent ? at : left(distance + 1);
    const double next_at = last ? 0.0 : right(distance + 1);
    const double mass = (before - at) - (next_before - next_at);
    masses[static_cast<std::size_t>(kOpenCentre + sign * distance)] += std::max(0.0, mass);
    before = next_before;
    at = next_at;
  }
  return rest;
}

double count_of(std::span<const MagnitudeBin> bins) {
  double count = 0;
  for (const MagnitudeBin& bin : bins) count += bin.count;
  return count;
}

}  // namespace

SymbolMasses level_masses(const BinnedLaw& law, double step, Rounding rounding) {
  SymbolMasses masses = {};
  double zero = law.zeros;
  zero += add_side(BinnedTails(law.positive, step), count_of(law.positive), rounding, 1, masses);
  zero += add_side(BinnedTails(law.negative, step), count_of(law.negative), rounding, -1, masses);
  masses[kOpenCentre] = zero;
  return masses;
}

SymbolMasses level_masses(double shape, double scale, double step, Rounding rounding) {
  SymbolMasses masses = {};
  masses[kOpenCentre] = 2.0 * add_side(GennormTails(shape, scale, step), 0.5, rounding, 1, masses);
  for (int distance = 1; distance <= kOpenCentre; ++distance)
    masses[static_cast<std::size_t>(kOpenCentre - distance)] =
        masses[static_cast<std::size_t>(kOpenCentre + distance)];
  return masses;
}

double level_bits(const SymbolMasses& masses) {
  double sum = 0, bits = 0;
  for (const double mass : masses) sum += mass;
  for (int s = 0; s < kNumOpenSymbols; ++s) {
    const double mass = masses[static_cast<std::size_t>(s)];
    if (mass <= sum * 0x1p-100) continue;  // in tails, down to where sum / mass overflows
    const int distance = s < kOpenCentre ? kOpenCentre - s : s - kOpenCentre;
    bits += mass * (portable_log2(sum / mass) + num_extra_bits(distance));
  }
  return bits;
}

Weights level_weights(double shape, double scale) {
  const SymbolMasses masses = level_masses(shape, scale, 1.0, Rounding::kStochastic);
  Weights weights = {};
  for (std::size_t s = 0; s < masses.size(); ++s)
    weights[s] = static_cast<std::uint64_t>(
        (masses[s] * (1023.0 / 1024.0) + 1.0 / (1024.0 * kNumOpenSymbols)) * 0x1p40);
  return weights;
}

}  // namespace slimgrad
