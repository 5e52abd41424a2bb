// Every objective comes down to one number that all layers below the cap share (its logarithm is
// the `level` below). For a Lagrange multiplier the identity dMSE/dS = alpha^2 does the work:
//   min_cosine   nmse_i                                    (equal errors)
//   mean_cosine  alpha_i^2 / E x_i^2 / (1 + nmse_i)^(3/2)  (equal slopes d cos / dS, halved)
//   mean_error   alpha_i^2 / E x_i^2                       (equal slopes d nmse / dS)
//   total_error  alpha_i^2                                 (equal slopes d MSE / dS)
// where E x^2 counts the zeros. Each is increasing in alpha, hence so is the total sparsity in the
// level, and one bracketed root gives it. Cost: about 50 evaluations of the total, each with a root
// per layer for the first two objectives.
//
// A target fixes its layer: cosine 1 / sqrt(1 + nmse) gives nmse, and nmse alpha. What it leaves of
// the budget is a number of zeros, and spreading that over the rest is the same problem with fewer
// layers.
#include <slimgrad/threshold.h>

#include <algorithm>
#include <boost/math/tools/toms748_solve.hpp>
#include <cmath>
#include <limits>
#include <memory>
#include <string>

#include "base/check.h"
#include "base/names.h"
#include "base/portable_math.h"
#include "math/decide/pruning_law.h"

namespace slimgrad {
namespace {

constexpr NameTable<AllocationObjective, 6> kObjectiveNames = {{
    {AllocationObjective::kMinCosine, "min_cosine"},
    {AllocationObjective::kMeanCosine, "mean_cosine"},
    {AllocationObjective::kMeanError, "mean_error"},
    {AllocationObjective::kTotalError, "total_error"},
    {AllocationObjective::kUniform, "uniform"},
    {AllocationObjective::kTargets, "targets"},
}};

constexpr const char* kOp = "allocate";
constexpr double kNoPruning = -std::numeric_limits<double>::infinity();  // ln of alpha = 0

// The root of an increasing function between low and high; an end, if the root is not inside.
template <typename F>
double increasing_root(F f, double low, double high) {
  const double at_low = f(low), at_high = f(high);
  if (!(at_low < 0)) return low;
  if (!(at_high > 0)) return high;
  std::uintmax_t iterations = 200;
  const auto close = boost::math::tools::eps_tolerance<double>(52);
  const auto [a, b] =
      boost::math::tools::toms748_solve(f, low, high, at_low, at_high, close, iterations);
  return a + (b - a) / 2;
}

struct Layer {
  double count = 0;
  double zeros = 0;                 // fraction already there
  std::unique_ptr<PruningLaw> law;  // null if every value is zero
  double log_mean_square = 0;       // of all values
  double log_alpha_low = 0;         // where pruning begins to matter, and
  double log_alpha_cap = 0;         // where the cap is reached; kNoPruning if it is from the start

  double sparsity(double log_alpha) const {
    return log_alpha == kNoPruning ? zeros : zeros + (1 - zeros) * law->split(log_alpha).zeros;
  }
  double nmse(double log_alpha) const { return log_alpha == kNoPruning ? 0 : law->nmse(log_alpha); }
};

Layer make_layer(const TensorStats& stats, ThresholdMethod method, double cap) {
  check(stats.num_finite() > 0, kOp, "layers with at least one finite value", "a layer without");
  Layer layer;
  layer.count = static_cast<double>(stats.num_finite());
  layer.zeros = stats.zero_fraction;
  layer.log_alpha_cap = kNoPruning;
  if (layer.zeros >= std::min(cap, 1.0)) return layer;
  layer.law = make_pruning_law(stats, method, kOp);
  layer.log_mean_square = layer.law->log_mean_square() + portable_log(1 - layer.zeros);
  // Where a share of 1e-15 of the non-zeros vanishes, pruning is nothing but rounding.
  layer.log_alpha_low = solve_log_alpha(*layer.law, 1e-15, 1);
  // Without a cap the sparsity ends where a share of 1e-15 is kept.
  const double kept = std::max((1 - cap) / (1 - layer.zeros), 1e-15);
  layer.log_alpha_cap = solve_log_alpha(*layer.law, 1 - kept, kept);
  return layer;
}

// The level of a layer at ln alpha, for the objective; see the top of the file.
double level_of(const Layer& layer, double log_alpha, AllocationObjective objective) {
  const double slope = 2 * log_alpha - layer.log_mean_square;
  switch (objective) {
    case AllocationObjective::kMinCosine:
      return portable_log(std::max(layer.nmse(log_alpha), 1e-300));
    case AllocationObjective::kMeanCosine:
      return slope - 1.5 * portable_log(1 + layer.nmse(log_alpha));
    case AllocationObjective::kMeanError:
      return slope;
    default:  // kTotalError
      return 2 * log_alpha;
  }
}

double log_alpha_at(const Layer& layer, double level, AllocationObjective objective) {
  if (layer.log_alpha_cap == kNoPruning) return kNoPruning;
  if (objective == AllocationObjective::kMeanError)
    return std::min(layer.log_alpha_cap, (level + layer.log_mean_square) / 2);
  if (objective == AllocationObjective::kTotalError)
    return std::min(layer.log_alpha_cap, level / 2);
  return increasing_root(
      [&](double log_alpha) { return level_of(layer, log_alpha, objective) - level; },
      layer.log_alpha_low, layer.log_alpha_cap);
}

double log_alpha_for_sparsity(const Layer& layer, double sparsity) {
  if (layer.log_alpha_cap == kNoPruning || sparsity <= layer.zeros) return kNoPruning;
  const double kept = (1 - sparsity) / (1 - layer.zeros);
  return std::min(layer.log_alpha_cap,
                  solve_log_alpha(*layer.law, (sparsity - layer.zeros) / (1 - layer.zeros), kept));
}

// Spreads `wanted` zeros (a number, not a fraction) over the layers that are `free`.
void spread(const std::vector<Layer>& layers, const std::vector<bool>& free, double wanted,
            AllocationObjective objective, std::vector<double>& log_alphas) {
  const double inf = std::numeric_limits<double>::infinity();
  double low = inf, high = -inf;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (!free[i] || layers[i].log_alpha_cap == kNoPruning) continue;
    low = std::min(low, level_of(layers[i], layers[i].log_alpha_low, objective));
    high = std::max(high, level_of(layers[i], layers[i].log_alpha_cap, objective));
  }
  const auto at_level = [&](double level) {
    double zeros = 0;
    for (std::size_t i = 0; i < layers.size(); ++i) {
      if (!free[i]) continue;
      log_alphas[i] = log_alpha_at(layers[i], level, objective);
      zeros += layers[i].count * layers[i].sparsity(log_alphas[i]);
    }
    return zeros - wanted;
  };
  if (low <= high) at_level(increasing_root(at_level, low, high));
}

// The same with one sparsity for the layers that are `free`, where their zeros and the cap let it.
void spread_evenly(const std::vector<Layer>& layers, const std::vector<bool>& free, double wanted,
                   double cap, std::vector<double>& log_alphas) {
  const auto surplus = [&](double sparsity) {
    double zeros = 0;
    for (std::size_t i = 0; i < layers.size(); ++i)
      if (free[i]) zeros += layers[i].count * std::max(layers[i].zeros, std::min(sparsity, cap));
    return zeros - wanted;
  };
  const double shared = increasing_root(surplus, 0, 1);
  for (std::size_t i = 0; i < layers.size(); ++i)
    if (free[i]) log_alphas[i] = log_alpha_for_sparsity(layers[i], shared);
}

// Which layers no target fixes; ln alpha of those that one does.
std::vector<bool> fix_targets(const std::vector<Layer>& layers,
                              std::span<const CosineTarget> targets,
                              std::vector<double>& log_alphas) {
  std::vector<bool> free(layers.size(), true);
  for (const CosineTarget& target : targets) {
    check(target.layer < layers.size(), kOp, "a target for one of the layers", "one for layer ",
          target.layer, " of ", layers.size());
    check(target.cosine > 0 && target.cosine <= 1, kOp, "a target with 0 < cosine <= 1",
          target.cosine);
    check(free[target.layer], kOp, "at most one target for a layer", "two for layer ",
          target.layer);
    free[target.layer] = false;
    const double nmse = 1 / (target.cosine * target.cosine) - 1;
    if (nmse > 0)
      log_alphas[target.layer] =
          log_alpha_at(layers[target.layer], portable_log(nmse), AllocationObjective::kMinCosine);
  }
  return free;
}

// What the free layers must hold, after those with a target; throws if they cannot, or gives what
// they can.
double remaining_zeros(const std::vector<Layer>& layers, const std::vector<bool>& free,
                       const std::vector<double>& log_alphas, double sparsity, double cap,
                       OutOfReach out_of_reach) {
  double count = 0, fixed = 0, least = 0, most = 0;
  bool has_targets = false;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const Layer& layer = layers[i];
    count += layer.count;
    if (free[i]) {
      least += layer.count * layer.zeros;
      most += layer.count * std::max(layer.zeros, cap);
    } else {
      has_targets = true;
      fixed += layer.count * layer.sparsity(log_alphas[i]);
    }
  }
  const double wanted = sparsity * count - fixed;
  // A hair of slack: a sum of products need not come out at its own bound.
  const double slack = 1e-12 * count;
  if (out_of_reach == OutOfReach::kThrow && (wanted < least - slack || wanted > most + slack))
    throw_invalid(
        kOp,
        "a sparsity between " + std::to_string((fixed + least) / count) +
            (has_targets ? " (the targets, the rest as it is)" : " (the zeros already there)") +
            " and " + std::to_string((fixed + most) / count) +
            (has_targets ? " (the targets, the rest at its cap)" : " (every layer at its cap)"),
        sparsity);
  return std::clamp(wanted, least, most);
}

// Statistics that were measured have a histogram, unless every value was zero.
ThresholdMethod default_method(std::span<const TensorStats> layers) {
  const bool measured = std::ranges::all_of(layers, [](const TensorStats& stats) {
    return stats.num_nonzero() == 0 || stats.histogram.total() > 0;
  });
  return measured ? ThresholdMethod::kEmpirical : ThresholdMethod::kLognormal;
}

}  // namespace

std::string_view objective_name(AllocationObjective objective) {
  return name_of(kObjectiveNames, objective);
}

AllocationObjective parse_allocation_objective(std::string_view name) {
  return parse_name(kObjectiveNames, kOp, "objective", name);
}

std::vector<LayerAllocation> allocate(std::span<const TensorStats> layer_stats, double sparsity,
                                      AllocationObjective objective,
                                      std::optional<ThresholdMethod> method, double cap,
                                      std::span<const CosineTarget> targets,
                                      OutOfReach out_of_reach) {
  check(!layer_stats.empty(), kOp, "at least one layer", "none");
  check(sparsity >= 0 && sparsity < 1, kOp, "0 <= sparsity < 1", sparsity);
  check(cap > 0 && cap <= 1, kOp, "0 < cap <= 1", cap);
  check(method != ThresholdMethod::kMean, kOp, "method empirical, lognormal, gennorm or normal",
        "mean");
  check(objective != AllocationObjective::kTargets || !targets.empty(), kOp,
        "at least one target with the objective targets", "none");
  std::vector<Layer> layers;
  const ThresholdMethod law = method.value_or(default_method(layer_stats));
  for (const TensorStats& stats : layer_stats) layers.push_back(make_layer(stats, law, cap));

  std::vector<double> log_alphas(layers.size(), kNoPruning);
  const std::vector<bool> free = fix_targets(layers, targets, log_alphas);
  const double wanted = remaining_zeros(layers, free, log_alphas, sparsity, cap, out_of_reach);
  if (objective == AllocationObjective::kTargets) objective = AllocationObjective::kMinCosine;
  if (objective == AllocationObjective::kUniform)
    spread_evenly(layers, free, wanted, cap, log_alphas);
  else
    spread(layers, free, wanted, objective, log_alphas);

  std::vector<LayerAllocation> result;
  for (std::size_t i = 0; i < layers.size(); ++i)
    result.push_back({.sparsity = layers[i].sparsity(log_alphas[i]),
                      .threshold = portable_exp(log_alphas[i]),
                      .cosine = 1 / std::sqrt(1 + layers[i].nmse(log_alphas[i])),
                      .at_cap = log_alphas[i] == layers[i].log_alpha_cap});
  return result;
}

}  // namespace slimgrad
