#include <slimgrad/gradient_plan.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include "base/names.h"

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
      return low > 0 ? low * std::pow(high / low, part) : high * part;
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

// best_format() by table: the deviation at which each width changes its mind. Building it costs
// some milliseconds, once; a look-up nothing, which matters in every layer of every step.
FloatFormat format_for(int bits, double log2_std) {
  static const auto crossovers = [] {
    std::vector<std::vector<std::pair<double, FloatFormat>>> table(9);
    for (int width = 2; width <= 8; ++width)
      for (double s = 0.05; s < 40; s *= 1.01) {
        const FloatFormat best = best_format(width, s);
        if (table[width].empty() || !(table[width].back().second == best))
          table[width].push_back({s, best});
      }
    return table;
  }();
  FloatFormat best = crossovers[bits].front().second;
  for (const auto& [from, format] : crossovers[bits])
    if (log2_std >= from) best = format;
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

// The largest scale at or above `scale`, within one step of the grid, at which alpha is a grid
// value.
double scale_through(const FloatFormat& format, double scale, double alpha) {
  const std::vector<double> grid = format.values();
  const auto above = std::upper_bound(grid.begin() + 1, grid.end(), alpha / scale);
  if (above == grid.begin() + 1) return scale;  // alpha underflows at any scale that spares the top
  return alpha / *(above - 1);
}

// A threshold below the grid: flushing it to zero would undo what makes pruning unbiased.
void keep_threshold(GradientPlan& plan) {
  if (plan.quantizer && plan.prune == PruneKind::kStochastic &&
      plan.threshold < plan.quantizer->scale * plan.quantizer->format.smallest())
    plan.quantizer->underflow = Underflow::kStochastic;
}

}  // namespace

std::string_view prune_kind_name(PruneKind kind) { return name_of(kPruneKindNames, kind); }

PruneKind parse_prune_kind(std::string_view name) {
  return parse_name(kPruneKindNames, "Prune", "kind", name);
}

GradientPlan plan_gradient(const TensorStats& stats, const GradientSettings& settings) {
  GradientPlan plan;
  plan.threshold = choose_threshold(stats, settings);
  if (plan.threshold > 0) plan.prune = settings.prune;
  if (settings.bits == 0 || stats.zero_fraction == 1) return plan;

  // Pruning may put a value above the maximum: the threshold itself.
  TensorStats reach = stats;
  reach.max_abs = std::max(stats.max_abs, plan.threshold);
  const bool pruned = plan.prune != PruneKind::kNone;
  const FloatFormat format =
      settings.format ? *settings.format
      : pruned        ? covering_format(settings.bits, std::log2(reach.max_abs / plan.threshold))
                      : format_for(settings.bits, stats.log_std / std::numbers::ln2);
  double scale = settings.fixed_scale;
  if (!(scale > 0)) {
    scale = gradient_scale(reach, format, settings.scale_method);
    if (plan.prune == PruneKind::kStochastic) scale = scale_through(format, scale, plan.threshold);
  }
  // The scale is used as a normal float32.
  scale = std::clamp(scale, static_cast<double>(std::numeric_limits<float>::min()),
                     static_cast<double>(std::numeric_limits<float>::max()));
  plan.quantizer = Quantizer{format, scale, settings.rounding, settings.underflow};
  keep_threshold(plan);
  return plan;
}

GradientPlan guard_plan(const GradientPlan& plan, const TensorStats& stats,
                        const GradientSettings& settings) {
  GradientPlan guarded = plan;
  if (plan.prune == PruneKind::kNone || settings.sparsity >= 1) return guarded;
  const double highest = stats.mean_abs / (1 - settings.sparsity);
  guarded.threshold = std::min(plan.threshold, highest);
  if (guarded.threshold == 0) guarded.prune = PruneKind::kNone;
  keep_threshold(guarded);
  return guarded;
}

}  // namespace slimgrad
