// A training run: what it is told, where it stands and what it found. No tensors, so that those who
// parse arguments and print results need not see torch.
#ifndef SLIMGRAD_TRAINER_RUN_H_
#define SLIMGRAD_TRAINER_RUN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/gradient_choice.h"
#include "trainer/gradient_totals.h"

namespace slimgrad::trainer {

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

struct Run {
  std::string gradients;  // as the user wrote it
  GradientChoice choice;
  RunResult result;
};

}  // namespace slimgrad::trainer

#endif  // SLIMGRAD_TRAINER_RUN_H_
