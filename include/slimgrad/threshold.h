// Stochastic pruning, in expectation: which threshold gives which sparsity, and what it costs.
//
// Pruning with threshold alpha keeps x where |x| > alpha; elsewhere x becomes sign(x) alpha with
// probability |x|/alpha and zero otherwise. It is unbiased. The expected fraction of zeros is
//   S(alpha) = (zeros + sum over the rest of max(0, 1 - |x|/alpha)) / n.
// Everything here follows from a tensor's statistics; no tensor is touched. Pure functions.
#ifndef SLIMGRAD_THRESHOLD_H_
#define SLIMGRAD_THRESHOLD_H_

#include <string_view>

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
Threshold threshold(const TensorStats& stats, double sparsity, ThresholdMethod method);

// The other way round. REQUIRES (checked): threshold >= 0, finite.
double expected_sparsity(const TensorStats& stats, double threshold, ThresholdMethod method);

// Expected cosine similarity of a tensor and its pruned self, 1 / sqrt(1 + nmse). With kEmpirical
// it is the plug-in value, which a single draw matches to about 1e-4.
double expected_cosine(const TensorStats& stats, double threshold, ThresholdMethod method);

// Statistics that hold nothing but the parameters of a lognormal, for the method kLognormal.
// `count` matters to allocation only.
TensorStats lognormal_stats(double log_mean, double log_std, double zero_fraction,
                            std::uint64_t count = std::uint64_t{1} << 20);

}  // namespace slimgrad

#endif  // SLIMGRAD_THRESHOLD_H_
