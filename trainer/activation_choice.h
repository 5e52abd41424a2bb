// What --nonlinearity and --activations say: which function, and what it keeps for backward.
#ifndef SLIMGRAD_TRAINER_ACTIVATION_CHOICE_H_
#define SLIMGRAD_TRAINER_ACTIVATION_CHOICE_H_

#include <string>

namespace slimgrad::trainer {

struct ActivationChoice {
  std::string function;  // "relu", "gelu", "silu" or "tanh"
  int bits = 0;          // 1 to 4; 0: torch's own
  bool exact = false;    // from the output and one bit; where there is no inverse, as ReLU is

  bool few_bits() const { return bits > 0 || exact; }
};

}  // namespace slimgrad::trainer

#endif  // SLIMGRAD_TRAINER_ACTIVATION_CHOICE_H_
