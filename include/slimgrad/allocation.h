// How to spread a sparsity over layers: sum n_i S_i = S sum n_i, every S_i between the zeros that
// the layer already has and a cap. Uniform sparsity is far from the best when layers differ in
// spread. Pure functions.
#ifndef SLIMGRAD_ALLOCATION_H_
#define SLIMGRAD_ALLOCATION_H_

#include <span>
#include <string_view>
#include <vector>

#include <slimgrad/tensor_stats.h>
#include <slimgrad/threshold.h>

namespace slimgrad {

enum class AllocationObjective {
  kMinCosine,   // the worst cosine similarity as large as possible: one error for all (default)
  kMeanCosine,  // the mean cosine, weighted by size, as large as possible
  kMeanError,   // the mean normalised error as small as possible: alpha_i proportional to RMS_i
  kTotalError,  // the total squared error as small as possible: one alpha for all
  kUniform,     // the same sparsity for all, as far as their zeros and the cap allow
  kTargets,     // the targets below, of which there is at least one; the rest as kMinCosine
};

std::string_view objective_name(AllocationObjective objective);  // "min_cosine", ...
AllocationObjective parse_allocation_objective(std::string_view name);

// The paper's own scheme: this layer's cosine similarity is given, the others share what remains of
// the budget by the objective. The cap comes first: a layer that would have to be pruned beyond it
// stays there, with a larger cosine.
struct CosineTarget {
  std::size_t layer = 0;
  double cosine = 1;
};

struct LayerAllocation {
  double sparsity = 0;
  double threshold = 0;
  double cosine = 1;
  bool at_cap = false;
};

inline constexpr double kDefaultSparsityCap = 0.98;

// A sparsity that zeros, cap and targets put out of reach: an error that says what the least and
// the greatest reachable ones are, or the nearest of these.
enum class OutOfReach { kThrow, kNearest };

// Every layer is described by its law under `method` (kEmpirical, kLognormal, kGennorm or kNormal).
// Throws InvalidArgument, also for a target of no layer, for two of one, and for a cosine outside
// (0, 1].
std::vector<LayerAllocation> allocate(std::span<const TensorStats> layers, double sparsity,
                                      AllocationObjective objective, ThresholdMethod method,
                                      double cap = kDefaultSparsityCap,
                                      std::span<const CosineTarget> targets = {},
                                      OutOfReach out_of_reach = OutOfReach::kThrow);

}  // namespace slimgrad

#endif  // SLIMGRAD_ALLOCATION_H_
