// Weights and activations as if they were integers of 4 bits, in the forward pass alone: they are
// rounded and kept as floats, and gradients pass as if nothing had been rounded.
#ifndef SLIMGRAD_TRAINER_FAKE_INT4_H_
#define SLIMGRAD_TRAINER_FAKE_INT4_H_

#include <torch/types.h>

namespace slimgrad::trainer {

// -7 to 7, with a scale for each output channel (the first dimension): its largest magnitude is 7.
torch::Tensor fake_int4_weight(const torch::Tensor& weight);

// -7 to 7, or 0 to 15 if no value is negative, as behind a ReLU. One scale for all, with the least
// squared error of eight on a sample: at the largest magnitude, and down to a tenth of it, where
// larger values are clipped.
torch::Tensor fake_int4_input(const torch::Tensor& input);

}  // namespace slimgrad::trainer

#endif  // SLIMGRAD_TRAINER_FAKE_INT4_H_
