// Stochastic pruning, in expectation: which threshold gives which sparsity, what it costs, and how
// to spread a sparsity over layers.
//
// Pruning with threshold alpha keeps x where |x| > alpha; elsewhere x becomes sign(x) alpha with
// probability |x|/alpha and zero otherwise. It is unbiased. The expected fraction of zeros is
//   S(alpha) = (zeros + sum over the rest of max(0, 1 - |x|/alpha)) / n.
//
// An allocation gives n_i values of layer i the sparsity S_i: sum n_i S_i = S sum n_i, every S_i
// between the fraction of zeros that the layer already has and a cap. Uniform sparsity is far from
// the best when layers differ in spread.
//
// Everything here follows from TensorStats; no tensor is read. Pure functions; any thread may call
// them.
//
// Surprises. A tensor that already has the wanted sparsity gets the threshold 0
// (Threshold::nothing_to_prune). allocate() throws for a sparsity that zeros, cap and targets put
// out of reach, unless it is asked for the nearest one.
#ifndef SLIMGRAD_THRESHOLD_H_
#define SLIMGRAD_THRESHOLD_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include <slimgrad/tensor_stats.h>

namespace slimgrad {

// What is taken for the distribution of the non-zero magnitudes.
enum class ThresholdMethod {
  kEmpirical,  // the histogram: right for any tensor, the default
  kLognormal,  // log_mean and log_std, as in the lognormal paper; needs no histogram
  kGennorm,    // a generalized normal, fitted to the histogram
  kNormal,     // a normal with the tensor's mean square (the ATP baseline); needs no histogram
  kMean,       // alpha = mean|x| / (1 - S): exact if no magnitude exceeds alpha; needs no histogram
};

std::string_view method_name(ThresholdMethod method);  // "empirical", ...
ThresholdMethod parse_threshold_method(std::string_view name);

struct Threshold {
  double value = 0;         // alpha
  double sparsity = 0;      // expected fraction of zeros, those already there included
  double at_threshold = 0;  // expected fraction at +-alpha
  double survivors = 1;     // expected fraction above alpha
  // The tensor already has at least the wanted sparsity. Then alpha is 0, nothing is pruned, and
  // `sparsity` says what there is.
  bool nothing_to_prune = false;
};

// The threshold at which pruning is expected to leave `sparsity` zeros.
// Throws InvalidArgument unless 0 <= sparsity < 1, and if the method needs a histogram that the
// statistics do not have, or the tensor has no finite value.
Threshold threshold(const TensorStats& stats, double sparsity,
                    ThresholdMethod method = ThresholdMethod::kEmpirical);

// The inverse: the sparsity that a threshold gives. REQUIRES (checked): threshold >= 0, finite.
double expected_sparsity(const TensorStats& stats, double threshold,
                         ThresholdMethod method = ThresholdMethod::kEmpirical);

// Expected cosine similarity of a tensor and its pruned self, 1 / sqrt(1 + nmse). With kEmpirical
// it is the plug-in value, which a single draw matches to about 1e-4.
double expected_cosine(const TensorStats& stats, double threshold,
                       ThresholdMethod method = ThresholdMethod::kEmpirical);

// Statistics that hold nothing but the parameters of a lognormal, for the method kLognormal.
// `count` matters to allocation only.
TensorStats lognormal_stats(double log_mean, double log_std, double zero_fraction,
                            std::uint64_t count = std::uint64_t{1} << 20);

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

// For a sparsity that zeros, cap and targets put out of reach: throw an error that names the least
// and the greatest reachable ones, or take the nearest of these.
enum class OutOfReach { kThrow, kNearest };

// Every layer is described by its law under `method` (kEmpirical, kLognormal, kGennorm or kNormal;
// by default kEmpirical if all layers have a histogram, else kLognormal). Throws InvalidArgument,
// also for a target of no layer, for two of one, and for a cosine outside (0, 1].
std::vector<LayerAllocation> allocate(
    std::span<const TensorStats> layers, double sparsity,
    AllocationObjective objective = AllocationObjective::kMinCosine,
    std::optional<ThresholdMethod> method = std::nullopt, double cap = kDefaultSparsityCap,
    std::span<const CosineTarget> targets = {}, OutOfReach out_of_reach = OutOfReach::kThrow);

}  // namespace slimgrad

#endif  // SLIMGRAD_THRESHOLD_H_
