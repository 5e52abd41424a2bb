// What to do with a gradient, as `constexpr` rules that CPU and devices share (slimgrad/gate.h says
// what they mean): choose_treatment() and guard_treatment() on plain numbers.
//
// What takes a histogram is asked of `tensor`, which has
//   double threshold()                            of the wanted sparsity, by the settings
//   FormatGrid format()                           by the settings
//   double scale(const FormatGrid&, double reach) by the settings; `reach` is the largest magnitude
#ifndef SLIMGRAD_MATH_DECIDE_TREATMENT_RULES_H_
#define SLIMGRAD_MATH_DECIDE_TREATMENT_RULES_H_

#include <algorithm>
#include <limits>
#include <numbers>

#include <slimgrad/format_choice.h>
#include <slimgrad/threshold.h>
#include <slimgrad/treatment.h>

#include "base/portable_math.h"
#include "formats/format_grid.h"
#include "math/decide/format_crossovers.h"
#include "math/decide/pruning_rules.h"

namespace slimgrad {

// GradientSettings.
struct TreatmentSettings {
  PruneKind prune = PruneKind::kNone;
  double sparsity = 0;
  ThresholdMethod method = ThresholdMethod::kEmpirical;
  int bits = 0;
  bool has_format = false;
  FormatGrid format;
  SplitMethod split = SplitMethod::kEmpirical;
  ScaleMethod scale_method = ScaleMethod::kMax;
  double fixed_scale = 0;
  Rounding rounding = Rounding::kStochastic;
  Underflow underflow = Underflow::kStochastic;
};

// Treatment, but for what draws.
struct ChosenTreatment {
  double threshold = 0;
  bool drops = false;
  bool quantizes = false;
  FormatGrid format;
  double scale = 0;
  Rounding rounding = Rounding::kNearest;
  Underflow underflow = Underflow::kZero;

  constexpr bool prunes() const { return threshold > 0; }
};

// The magnitude below which a share `sparsity` of the finite values lies, zeros included: the
// histogram's quantile, log-uniform inside its bin. counts[k] of all `total` non-zeros.
template <class Counts>
constexpr double magnitude_quantile(const Counts& counts, std::uint64_t total, double zero_fraction,
                                    double max_abs, double sparsity) {
  const double share = (sparsity - zero_fraction) / (1 - zero_fraction);
  if (!(share > 0)) return 0;
  const double wanted = share * static_cast<double>(total);
  double below = 0;
  for (int k = 0; k < LogHistogram::kNumBins; ++k) {
    const double count = static_cast<double>(counts[k]);
    if (count > 0 && below + count >= wanted) {
      const double low = LogHistogram::lower_edge(k), high = LogHistogram::lower_edge(k + 1);
      const double part = (wanted - below) / count;
      return low > 0 ? low * portable_exp(part * portable_log(high / low)) : high * part;
    }
    below += count;
  }
  return max_abs;
}

// best_format() of a lognormal; `table` is kFormatCrossovers.
constexpr FormatGrid lognormal_format(const FormatCrossover* table, int bits, double log_std) {
  const double log2_std = log_std / std::numbers::ln2;
  int exponent_bits = 1;
  for (int i = 0; i < kNumFormatCrossovers; ++i) {
    const FormatCrossover& crossover = table[i];
    if (crossover.bits == bits && log2_std >= crossover.from)
      exponent_bits = crossover.exponent_bits;
  }
  return {exponent_bits, bits - 1 - exponent_bits};
}

// What is left of a pruned gradient lies between the threshold and the largest magnitude, and most
// of it at the threshold: the format with the fewest exponent bits that covers this range has no
// underflow and the finest steps. The widest one, if none does.
constexpr FormatGrid covering_format(int bits, double octaves) {
  for (int exponent_bits = 1; exponent_bits < bits - 1; ++exponent_bits) {
    const FormatGrid format = {exponent_bits, bits - 1 - exponent_bits};
    // One octave to spare: moving the scale through the threshold may take up to that.
    if (portable_log2(format.largest() / format.smallest()) >= octaves + 1) return format;
  }
  return {bits - 1, 0};
}

// The largest scale at or above `scale`, within one step of the grid, at which alpha is a grid
// value.
constexpr double scale_through(const FormatGrid& format, double scale, double alpha) {
  const int up_to = format.num_up_to(alpha / scale);
  if (up_to == 1) return scale;  // alpha underflows at any scale that spares the top
  return alpha / format.value(up_to - 1);
}

// The scale is used as a normal float32.
constexpr double usable_scale(double scale) {
  constexpr double kLeast = std::numeric_limits<float>::min(),
                   kMost = std::numeric_limits<float>::max();
  return scale < kLeast ? kLeast : kMost < scale ? kMost : scale;
}

// A threshold below the grid: flushing it to zero would undo what makes pruning unbiased.
constexpr void keep_threshold(ChosenTreatment& treatment, const TreatmentSettings& settings) {
  if (treatment.quantizes && treatment.prunes() && settings.prune == PruneKind::kStochastic &&
      treatment.threshold < treatment.scale * treatment.format.smallest())
    treatment.underflow = Underflow::kStochastic;
}

// After stochastic pruning most survivors lie at the threshold, which the grid should contain.
constexpr double scale_for(const ChosenTreatment& treatment, double scale,
                           const TreatmentSettings& settings) {
  const bool is_crowded = treatment.prunes() && settings.prune == PruneKind::kStochastic;
  return is_crowded ? scale_through(treatment.format, scale, treatment.threshold) : scale;
}

// `stats` has the names of TensorStats, also below.
template <class Stats, class Tensor>
constexpr ChosenTreatment choose(const Stats& stats, const TreatmentSettings& settings,
                                 Tensor&& tensor) {
  ChosenTreatment treatment;
  const bool is_zero = stats.zero_fraction == 1;
  if (settings.prune != PruneKind::kNone && !is_zero) treatment.threshold = tensor.threshold();
  treatment.drops = treatment.prunes() && settings.prune == PruneKind::kTopK;
  if (settings.bits == 0 || is_zero) return treatment;

  // Pruning may put a value above the maximum: the threshold itself.
  const double reach = std::max(stats.max_abs, treatment.threshold);
  treatment.format =
      settings.has_format ? settings.format
      : treatment.prunes()
          ? covering_format(settings.bits, portable_log2(reach / treatment.threshold))
          : tensor.format();
  treatment.scale = settings.fixed_scale;
  if (!(treatment.scale > 0))
    treatment.scale = scale_for(treatment, tensor.scale(treatment.format, reach), settings);
  treatment.scale = usable_scale(treatment.scale);
  treatment.quantizes = true;
  treatment.rounding = settings.rounding;
  treatment.underflow = settings.underflow;
  keep_threshold(treatment, settings);
  return treatment;
}

template <class Stats, class Tensor>
constexpr ChosenTreatment guard(const ChosenTreatment& old, const Stats& stats,
                                const TreatmentSettings& settings, Tensor&& tensor) {
  ChosenTreatment guarded = old;
  if (old.prunes() && settings.sparsity < 1)
    guarded.threshold = std::min(old.threshold, stats.mean_abs / (1 - settings.sparsity));
  guarded.drops = old.drops && guarded.prunes();
  if (old.quantizes && !(settings.fixed_scale > 0) && stats.zero_fraction < 1) {
    constexpr double kLargestExcess = 4;
    const double reach = std::max(stats.max_abs, guarded.threshold);
    const double today = tensor.scale(guarded.format, reach), most = kLargestExcess * today;
    const double scale = guarded.scale < today  ? today
                         : most < guarded.scale ? most
                                                : guarded.scale;
    if (scale != guarded.scale) guarded.scale = usable_scale(scale_for(guarded, scale, settings));
  }
  keep_threshold(guarded, settings);
  return guarded;
}

// A threshold that the type cannot hold cannot be written either: then the largest value serves,
// and the sparsity falls short of the wanted one.
constexpr double writable_threshold(double threshold, double largest_of_type) {
  return std::min(threshold, largest_of_type);
}

}  // namespace slimgrad

#endif  // SLIMGRAD_MATH_DECIDE_TREATMENT_RULES_H_
