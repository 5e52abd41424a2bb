// A training run: what it is told, where it stands and what it found. No tensors, so that the code
// that parses arguments and prints results does not include torch.
#ifndef SLIMGRAD_TRAINER_RUN_H_
#define SLIMGRAD_TRAINER_RUN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/gradient_choice.h"
#include "trainer/gradient_totals.h"

namespace slimgrad::trainer {

// What --nonlinearity and --activations say: which function, and what it saves for backward.
struct ActivationChoice {
  std::string function;  // "relu", "gelu", "silu" or "tanh"
  int bits = 0;          // 1 to 4; 0: torch's own
  bool exact = false;    // from the output and one bit; where there is no inverse, as ReLU is

  bool few_bits() const { return bits > 0 || exact; }
};

struct TrainingOptions {
  int epochs = 3;
  std::int64_t batch_size = 64;
  std::string optimizer = "adamw";  // or "sgd"
  double learning_rate = 3e-3;      // at its peak
  double momentum = 0.9;            // of SGD
  double weight_decay = 1e-2;
  std::string schedule = "onecycle";
  std::uint64_t seed = 1;  // of the order of the samples
  bool augment = false;
  std::optional<int> saved_bits;  // of what autograd saves: 8, 4, 2, or 0 for exactly
  // Steps, from 1, at which gradients are measured in detail, and what is written about them.
  std::vector<int> probe_steps = {};
  bool histograms = true, fits = true, bits = true;
  std::int64_t stop_after = 0;  // number of steps, as if interrupted; 0: never
};

// The learning rate at a step, as a fraction of its peak.
// "onecycle": up in a straight line for the first fifth of the run, down to zero in a straight line
// after it. "cosine": half a wave from the peak to zero. "step": a tenth of it from the middle of
// the run on, a hundredth in the last quarter. "constant". Throws InvalidArgument for other names.
double rate_share(std::string_view schedule, std::int64_t step, std::int64_t num_steps);

// Where a run stands, after every step.
struct Progress {
  int epoch = 1, num_epochs = 1;                      // from 1
  std::int64_t step = 0, num_steps = 0, samples = 0;  // of the run; samples of this process
  std::int64_t batch_size = 1;
  bool last_of_epoch = false;
  double loss = 0, accuracy = 0;  // mean over the epoch so far
  double samples_per_second = 0;  // mean over this process so far
};

struct EpochResult {
  int epoch = 0;
  std::int64_t steps = 0;         // of the run so far
  double rate = 0;                // of the last step
  double loss = 0, accuracy = 0;  // of training, mean over the epoch
  double test_loss = 0, test_accuracy = 0;
  double seconds = 0;  // of its steps; testing is not counted
  double test_seconds = 0;
  std::int64_t activation_values = 0;  // that activations see in a forward pass
  std::int64_t plain_saved_bytes = 0,
               saved_bytes = 0;  // by autograd, and packed; without --saved 0
};

struct RunResult {
  std::vector<EpochResult> epochs;
  double step_seconds = 0;         // forward, backward and update, all steps
  double median_step_seconds = 0;  // of the last process
  GradientTotals gradients;
  bool finished = false, diverged = false;
  std::int64_t resumed = 0;  // times
  std::string weights;       // a hash of what was learnt

  double test_accuracy() const { return epochs.empty() ? 0 : epochs.back().test_accuracy; }
};

// What a run needs to go on, beside tensors.
struct RunState {
  int epoch = 0;  // finished ones
  std::int64_t step_in_epoch = 0, step = 0;
  double loss_sum = 0, epoch_seconds = 0;
  std::int64_t correct = 0, judged = 0;                 // predictions in this epoch
  std::int64_t activation_values = 0;                   // of the last step
  std::int64_t plain_saved_bytes = 0, saved_bytes = 0;  // likewise
  std::uint64_t tensors_packed = 0;  // and rounded, since the beginning: which draws come next
  GradientTotals epoch_gradients;
  RunResult result;
  std::uint64_t out_bytes = 0;  // of --out, written until then
};

// To bytes and back, to the last bit. `from_bytes` throws std::exception for other bytes.
std::string to_bytes(const RunState& state);
RunState from_bytes(const std::string& bytes);

struct Run {
  int number = 1;         // from 1, of those of a command
  std::string gradients;  // as the user wrote it
  GradientChoice choice;
  RunState state;

  const RunResult& result() const { return state.result; }
};

}  // namespace slimgrad::trainer

#endif  // SLIMGRAD_TRAINER_RUN_H_
