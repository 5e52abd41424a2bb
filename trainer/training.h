// The training loop: AdamW with a one-cycle learning rate.
#ifndef SLIMGRAD_TRAINER_TRAINING_H_
#define SLIMGRAD_TRAINER_TRAINING_H_

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "trainer/glyphs.h"
#include "trainer/gradient_totals.h"

namespace slimgrad::trainer {

struct Samples {
  torch::Tensor images;  // uint8, N x 3 x 32 x 32
  torch::Tensor labels;  // int64, N
};
Samples to_samples(const GlyphSet& set);

struct TrainingOptions {
  int epochs = 3;
  std::int64_t batch_size = 64;
  double learning_rate = 3e-3;  // at its peak
  double weight_decay = 1e-2;
  std::uint64_t seed = 1;  // of the order of the images
};

// Where a run stands, after every step.
struct Progress {
  int epoch = 1, num_epochs = 1;                     // from 1
  std::int64_t step = 0, num_steps = 0, images = 0;  // of the run
  bool last_of_epoch = false;
  double loss = 0, accuracy = 0;  // mean over the epoch so far
  double images_per_second = 0;   // mean over the run so far
};

struct RunResult {
  std::vector<double> loss_by_epoch;
  std::vector<double> accuracy_by_epoch;  // on the test images
  std::vector<double> seconds_by_epoch;   // of its steps; testing is not counted
  double test_accuracy = 0;
  double mean_step_seconds = 0, median_step_seconds = 0;  // forward, backward and update
  GradientTotals gradients;
};

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
