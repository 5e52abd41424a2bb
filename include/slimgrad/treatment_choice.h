// From what a user wants and what a gradient looks like to what is done with it: the decision that
// a gate takes in every backward pass. Pure functions; plain data.
#ifndef SLIMGRAD_TREATMENT_CHOICE_H_
#define SLIMGRAD_TREATMENT_CHOICE_H_

#include <optional>
#include <string_view>

#include <slimgrad/float_format.h>
#include <slimgrad/format_choice.h>
#include <slimgrad/tensor_stats.h>
#include <slimgrad/threshold.h>
#include <slimgrad/treatment.h>

namespace slimgrad {

enum class PruneKind {
  kNone,
  kStochastic,      // threshold for the expected sparsity, unbiased: the method of slimgrad
  kTopK,            // baseline: zero the smallest share of the magnitudes; biased
  kTopKStochastic,  // baseline: the top-k threshold, pruned stochastically; sparsity falls short
};

std::string_view prune_kind_name(
    PruneKind kind);  // "none", "stochastic", "topk", "topk_stochastic"
PruneKind parse_prune_kind(std::string_view name);

// What the user wants for one layer.
struct GradientSettings {
  PruneKind prune = PruneKind::kNone;
  double sparsity = 0;
  ThresholdMethod method = ThresholdMethod::kEmpirical;

  int bits = 0;                       // 0: do not quantize
  std::optional<FloatFormat> format;  // none: see choose_treatment()
  SplitMethod split = SplitMethod::kEmpirical;
  ScaleMethod scale_method = ScaleMethod::kMax;
  double fixed_scale = 0;  // positive: used instead of scale_method (global loss scaling)
  // Unbiased; rounding to nearest and flushing to zero are cheaper, and harm layers with a great
  // many small values that matter together, such as the softmax of a vocabulary.
  Rounding rounding = Rounding::kStochastic;
  Underflow underflow = Underflow::kStochastic;
};

// What to do with the gradient at hand. REQUIRES: stats.num_finite() > 0. A tensor with nothing to
// prune, or without a non-zero value, gets a treatment that leaves it alone in that respect.
//
// The format, unless given, is the best one by settings.split; of a pruned gradient, the one with
// the finest steps that covers what is left. There most values lie at +-threshold, so the scale is
// raised, by less than one step of the grid, until the threshold is itself a grid value: rounding
// to nearest would otherwise shift the bulk of the tensor. Where the grid does not reach down to
// the threshold, underflow is stochastic whatever the settings say.
Treatment choose_treatment(const TensorStats& stats, const GradientSettings& settings);

// A treatment that was chosen for an older gradient, made safe for this one. Never prune above
// mean|x| / (1 - sparsity): the noise of pruning, E[|x| (alpha - |x|)^+], grows with alpha without
// bound; a stale threshold far above a shrunken tensor would drown it. A scale that its method
// found stays between the one it would find today, below which values are clipped, and four times
// that, above which ever more of the tensor drowns in the noise of underflow in the same way.
Treatment guard_treatment(const Treatment& old, const TensorStats& stats,
                          const GradientSettings& settings);

}  // namespace slimgrad

#endif  // SLIMGRAD_TREATMENT_CHOICE_H_
