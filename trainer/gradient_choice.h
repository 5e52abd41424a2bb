// What --gradients says, and what it saves.
#ifndef SLIMGRAD_TRAINER_GRADIENT_CHOICE_H_
#define SLIMGRAD_TRAINER_GRADIENT_CHOICE_H_

#include <optional>
#include <string_view>

#include <slimgrad/gate.h>

namespace slimgrad::trainer {

// Sparsities of the two products of a sparse backward pass.
struct SparseChoice {
  double weight = 0, input = 0;
};

// At most one of them.
struct GradientChoice {
  std::optional<GradientSettings> gates;
  std::optional<SparseChoice> sparse;
};

// "fp6", "prune:0.85", "prune:0.85+fp6" or "sparse:0.9:0.5" (weight, input); nothing for "none".
// Throws InvalidArgument on anything else.
GradientChoice parse_gradient_choice(std::string_view text);

// The bits a gradient value needs at best, for the shares of zeros and of values at +-threshold
// that were counted; the rest are survivors and take value_bits each. Which of the three a value is
// costs the entropy of the three shares, and one at the threshold a bit for its sign.
double ideal_bits_per_value(double zeros, double at_threshold, double value_bits);

}  // namespace slimgrad::trainer

#endif  // SLIMGRAD_TRAINER_GRADIENT_CHOICE_H_
