// The training loop: AdamW with a one-cycle learning rate.
#ifndef SLIMGRAD_TRAINER_TRAINING_H_
#define SLIMGRAD_TRAINER_TRAINING_H_

#include <torch/nn/modules/container/sequential.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>

#include "trainer/glyphs.h"
#include "trainer/run.h"

namespace slimgrad::trainer {

struct Samples {
  torch::Tensor images;  // uint8, N x 3 x 32 x 32
  torch::Tensor labels;  // int64, N
};
Samples to_samples(const GlyphSet& set);

// Trains and tests. Runs with equal options see the same images in the same order. The last images
// of an epoch that do not fill a batch are skipped. Throws std::runtime_error as soon as the loss
// is not finite. REQUIRES: at least one batch of training images and one test image.
RunResult train(torch::nn::Sequential& network, const Samples& training, const Samples& test,
                const TrainingOptions& options, const std::function<void(const Progress&)>& report);

// The share of the samples whose class the network names.
double accuracy_of(torch::nn::Sequential& network, const Samples& samples);

// The learning rate's share of its peak: up in a straight line for the first fifth of the run, down
// to zero in a straight line after it.
double one_cycle(std::int64_t step, std::int64_t num_steps);

}  // namespace slimgrad::trainer

#endif  // SLIMGRAD_TRAINER_TRAINING_H_
