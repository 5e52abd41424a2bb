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

// The deviation of log2 of the magnitudes that are left after pruning: the histogram above the
// threshold, and the share that pruning collects at it.
double log2_std_after(const TensorStats& stats, double alpha) {
  if (alpha == 0) return stats.log_std / std::numbers::ln2;
  double at = 0, count = 0, sum = 0, square = 0;
  const double log_alpha = std::log2(alpha);
  for (int k = 1; k < LogHistogram::kNumBins; ++k) {
    const double n = static_cast<double>(stats.histogram.counts[k]);
    if (n == 0) continue;
    const double middle = std::sqrt(LogHistogram::lower_edge(k) * LogHistogram::lower_edge(k + 1));
    if (middle <= alpha) {
      at += n * middle / alpha;
      continue;
    }
    const double log_middle = std::log2(middle) - log_alpha;
    count += n;
    sum += n * log_middle;
    square += n * log_middle * log_middle;
  }
  const double total = count + at;  // Those at the threshold have logarithm 0 here.
  if (total == 0) return 0;
  const double mean = sum / total;
  return std::sqrt(std::max(0.0, square / total - mean * mean));
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

// The largest scale at or above `scale`, within one step of the grid, at which alpha is a grid
// value.
double scale_through(const FloatFormat& format, double scale, double alpha) {
  const std::vector<double> grid = format.values();
  const auto above = std::upper_bound(grid.begin() + 1, grid.end(), alpha / scale);
  if (above == grid.begin() + 1) return scale;  // alpha underflows at any scale that spares the top
  return alpha / *(above - 1);
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

  const FloatFormat format = settings.format
                                 ? *settings.format
                                 : format_for(settings.bits, log2_std_after(stats, plan.threshold));
  double scale = settings.fixed_scale;
  if (!(scale > 0)) {
    // Pruning may put a value above the maximum: the threshold itself.
    TensorStats reach = stats;
    reach.max_abs = std::max(stats.max_abs, plan.threshold);
    scale = gradient_scale(reach, format, settings.scale_method);
    if (plan.prune == PruneKind::kStochastic) scale = scale_through(format, scale, plan.threshold);
  }
  // The scale is used as a normal float32.
  scale = std::clamp(scale, static_cast<double>(std::numeric_limits<float>::min()),
                     static_cast<double>(std::numeric_limits<float>::max()));
  plan.quantizer = Quantizer{format, scale, settings.rounding, settings.underflow};
  return plan;
}

GradientPlan guard_plan(const GradientPlan& plan, const TensorStats& stats,
                        const GradientSettings& settings) {
  GradientPlan guarded = plan;
  if (plan.prune == PruneKind::kNone || settings.sparsity >= 1) return guarded;
  const double highest = stats.mean_abs / (1 - settings.sparsity);
  guarded.threshold = std::min(plan.threshold, highest);
  if (guarded.threshold == 0) guarded.prune = PruneKind::kNone;
  return guarded;
}

}  // namespace slimgrad
