#include <slimgrad/gate.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <mutex>
#include <numbers>
#include <vector>

#include "base/names.h"
#include "base/portable_math.h"

namespace slimgrad {
namespace {

constexpr NameTable<PruneKind, 4> kPruneKindNames = {{
    {PruneKind::kNone, "none"},
    {PruneKind::kStochastic, "stochastic"},
    {PruneKind::kTopK, "topk"},
    {PruneKind::kTopKStochastic, "topk_stochastic"},
}};

// The magnitude below which a share `sparsity` of the finite values lies, zeros included: the
// histogram's quantile, log-uniform inside its bin.
double magnitude_quantile(const TensorStats& stats, double sparsity) {
  const double share = (sparsity - stats.zero_fraction) / (1 - stats.zero_fraction);
  if (!(share > 0)) return 0;
  const double wanted = share * static_cast<double>(stats.histogram.total());
  double below = 0;
  for (int k = 0; k < LogHistogram::kNumBins; ++k) {
    const double count = static_cast<double>(stats.histogram.counts[k]);
    if (count > 0 && below + count >= wanted) {
      const double low = LogHistogram::lower_edge(k), high = LogHistogram::lower_edge(k + 1);
      const double part = (wanted - below) / count;
      return low > 0 ? low * portable_exp(part * portable_log(high / low)) : high * part;
    }
    below += count;
  }
  return stats.max_abs;
}

double choose_threshold(const TensorStats& stats, const GradientSettings& settings) {
  if (settings.prune == PruneKind::kNone || stats.zero_fraction == 1) return 0;
  if (settings.prune == PruneKind::kStochastic)
    return threshold(stats, settings.sparsity, settings.method).value;
  return magnitude_quantile(stats, settings.sparsity);
}

// best_format() by table: the deviations at which a width changes its mind, each found by halving
// steps. A look-up costs nothing, which matters in every layer of every step; building the table of
// a width takes some milliseconds, once.
struct Crossover {
  double from;
  FloatFormat format;
};

std::vector<Crossover> crossovers_of(int bits) {
  constexpr double kLow = 0.05, kHigh = 40, kStep = 1.25, kExact = 1.001;
  std::vector<Crossover> table = {{0, best_format(bits, kLow)}};
  for (double low = kLow; low < kHigh; low *= kStep) {
    const FloatFormat next = best_format(bits, low * kStep);
    if (next == table.back().format) continue;
    double same = low, other = low * kStep;
    while (other > same * kExact) {
      const double middle = std::sqrt(same * other);
      (best_format(bits, middle) == table.back().format ? same : other) = middle;
    }
    table.push_back({other, next});
  }
  return table;
}

FloatFormat format_for(int bits, double log2_std) {
  static std::array<std::once_flag, 9> built;
  static std::array<std::vector<Crossover>, 9> tables;
  const auto width = static_cast<std::size_t>(bits);
  std::call_once(built[width], [&] { tables[width] = crossovers_of(bits); });
  FloatFormat best = tables[width].front().format;
  for (const Crossover& crossover : tables[width])
    if (log2_std >= crossover.from) best = crossover.format;
  return best;
}

// What is left of a pruned gradient lies between the threshold and the largest magnitude, and most
// of it at the threshold: the format with the fewest exponent bits that covers this range has no
// underflow and the finest steps. The widest one, if none does.
FloatFormat covering_format(int bits, double octaves) {
  for (int exponent_bits = 1; exponent_bits < bits - 1; ++exponent_bits) {
    const FloatFormat format(exponent_bits, bits - 1 - exponent_bits);
    // One octave to spare: moving the scale through the threshold may take up to that.
    if (format.octaves() >= octaves + 1) return format;
  }
  return FloatFormat(bits - 1, 0);
}

FloatFormat choose_format(const TensorStats& stats, const GradientSettings& settings) {
  if (settings.split == SplitMethod::kLognormal)
    return format_for(settings.bits, stats.log_std / std::numbers::ln2);
  return best_format(settings.bits, stats,
                     {.method = settings.split,
                      .scale = settings.scale_method,
                      .fixed_scale = settings.fixed_scale,
                      .rounding = settings.rounding,
                      .underflow = settings.underflow});
}

// The largest scale at or above `scale`, within one step of the grid, at which alpha is a grid
// value.
double scale_through(const FloatFormat& format, double scale, double alpha) {
  const std::vector<double> grid = format.values();
  const auto above = std::upper_bound(grid.begin() + 1, grid.end(), alpha / scale);
  if (above == grid.begin() + 1) return scale;  // alpha underflows at any scale that spares the top
  return alpha / *(above - 1);
}

// The scale is used as a normal float32.
double usable_scale(double scale) {
  return std::clamp(scale, static_cast<double>(std::numeric_limits<float>::min()),
                    static_cast<double>(std::numeric_limits<float>::max()));
}

// The statistics of what pruning at a threshold leaves to quantize, as far as a scale looks at
// them. Pruning may put a value above the maximum: the threshold itself.
TensorStats pruned_reach(TensorStats stats, double threshold) {
  stats.max_abs = std::max(stats.max_abs, threshold);
  return stats;
}

// A threshold below the grid: flushing it to zero would undo what makes pruning unbiased.
void keep_threshold(Treatment& treatment, const GradientSettings& settings) {
  if (treatment.quantizer && treatment.prunes() && settings.prune == PruneKind::kStochastic &&
      treatment.threshold < treatment.quantizer->scale * treatment.quantizer->format.smallest())
    treatment.quantizer->underflow = Underflow::kStochastic;
}

// After stochastic pruning most survivors lie at the threshold, which the grid should contain.
double scale_for(const Treatment& treatment, const FloatFormat& format, double scale,
                 const GradientSettings& settings) {
  const bool is_crowded = treatment.prunes() && settings.prune == PruneKind::kStochastic;
  return is_crowded ? scale_through(format, scale, treatment.threshold) : scale;
}

}  // namespace

std::string_view prune_kind_name(PruneKind kind) { return name_of(kPruneKindNames, kind); }

PruneKind parse_prune_kind(std::string_view name) {
  return parse_name(kPruneKindNames, "Prune", "kind", name);
}

Treatment choose_treatment(const TensorStats& stats, const GradientSettings& settings) {
  Treatment treatment;
  treatment.threshold = choose_threshold(stats, settings);
  treatment.drops = treatment.prunes() && settings.prune == PruneKind::kTopK;
  if (settings.bits == 0 || stats.zero_fraction == 1) return treatment;

  const TensorStats reach = pruned_reach(stats, treatment.threshold);
  const FloatFormat format =
      settings.format ? *settings.format
      : treatment.prunes()
          ? covering_format(settings.bits, portable_log2(reach.max_abs / treatment.threshold))
          : choose_format(reach, settings);
  double scale = settings.fixed_scale;
  if (!(scale > 0))
    scale = scale_for(treatment, format, gradient_scale(reach, format, settings.scale_method),
                      settings);
  treatment.quantizer =
      Quantizer{format, usable_scale(scale), settings.rounding, settings.underflow};
  keep_threshold(treatment, settings);
  return treatment;
}

Treatment guard_treatment(const Treatment& old, const TensorStats& stats,
                          const GradientSettings& settings) {
  Treatment guarded = old;
  if (old.prunes() && settings.sparsity < 1)
    guarded.threshold = std::min(old.threshold, stats.mean_abs / (1 - settings.sparsity));
  guarded.drops = old.drops && guarded.prunes();
  if (old.quantizer && !(settings.fixed_scale > 0) && stats.zero_fraction < 1) {
    constexpr double kLargestExcess = 4;
    Quantizer& quantizer = *guarded.quantizer;
    const TensorStats reach = pruned_reach(stats, guarded.threshold);
    const double today = gradient_scale(reach, quantizer.format, settings.scale_method);
    const double scale = std::clamp(quantizer.scale, today, kLargestExcess * today);
    if (scale != quantizer.scale)
      quantizer.scale = usable_scale(scale_for(guarded, quantizer.format, scale, settings));
  }
  keep_threshold(guarded, settings);
  return guarded;
}

}  // namespace slimgrad
