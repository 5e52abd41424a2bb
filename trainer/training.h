// The training loop, and the batches that it trains on.
#ifndef SLIMGRAD_TRAINER_TRAINING_H_
#define SLIMGRAD_TRAINER_TRAINING_H_

#include <ATen/core/Generator.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <slimgrad/saved_tensors.h>

#include "trainer/data_set.h"
#include "trainer/gradient_probe.h"
#include "trainer/network_gates.h"
#include "trainer/networks.h"
#include "trainer/run.h"

namespace slimgrad::trainer {

// ---- samples as tensors, a batch at a time ------------------------------------------------------

struct Batch {
  torch::Tensor input;   // images: float32, laid out as oneDNN's convolutions like it best; bytes
  torch::Tensor target;  // classes; of text, the byte behind each byte
};

class Batches {
 public:
  Batches(DataSet data, bool augment, std::uint64_t seed);

  const DataSet& data() const { return data_; }
  std::int64_t num_training() const { return data_.training.count; }
  std::int64_t num_test() const { return data_.test.count; }

  // Samples by their indices. Augmentation follows from the seed, the epoch and the index.
  Batch training(const torch::Tensor& indices, int epoch) const;
  Batch test(std::int64_t from, std::int64_t to) const;

 private:
  torch::Tensor augmented(const torch::Tensor& indices, int epoch) const;
  Batch batch_of(const torch::Tensor& bytes, const torch::Tensor& labels) const;

  DataSet data_;
  bool augment_;
  std::uint64_t seed_;
  torch::Tensor training_, training_labels_, test_, test_labels_;  // look at data_
  torch::Tensor mean_, deviation_;                                 // of each channel
};

// ---- the loop -----------------------------------------------------------------------------------

// What the loop tells and asks on its way.
struct TrainingHooks {
  std::function<void(const Progress&)> progress;  // after every step
  std::function<void(const std::vector<GradientLook>&)> looked;
  std::function<void(const EpochResult&)> epoch_done;  // RunState still has the epoch's gradients
  std::function<void()> save;                          // the state is one to go on from
  std::function<bool()> interrupted;
};

// Runs with equal options see the same samples in the same order. The last samples of an epoch that
// do not fill a batch are skipped. REQUIRES: at least one batch of training samples and one test
// sample.
class Training {
 public:
  // `state` says where to begin and is kept up to date; all arguments outlive the training.
  Training(PartPtr network, const GradientChoice& gradients, const Batches& batches,
           const TrainingOptions& options, RunState& state, TrainingHooks hooks);

  // Trains and tests until the end, or until the loss is not finite. False if interrupted; then and
  // after every epoch the state was saved.
  bool run();

  // What a checkpoint holds, beside the RunState. Loading copies into the tensors.
  const std::map<std::string, torch::Tensor>& tensors() const { return tensors_; }
  torch::optim::Optimizer& optimizer() { return *optimizer_; }

 private:
  struct Outcome {
    double loss;
    std::int64_t correct, judged;
  };
  std::int64_t steps_an_epoch() const;
  torch::Tensor begin_epoch();  // the order of its samples
  Outcome take_step(const Batch& batch);
  bool step(const torch::Tensor& order, std::int64_t index);  // false: the loss is not finite
  bool stops() const;
  void tell_progress();
  void end_epoch();
  void end();
  std::vector<GradientLook> look_at_weights();
  GradientLook look(const std::string& layer, const char* tensor, const torch::Tensor& gradient);

  PartPtr network_;
  NetworkGates gates_;
  std::optional<SavedTensors> saved_tensors_;  // of what autograd saves
  const Batches& batches_;
  const TrainingOptions& options_;
  RunState& state_;
  TrainingHooks hooks_;
  bool stored_;     // compressed gradients could be, as those of gates
  bool refreshes_;  // once an epoch
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  at::Generator order_;
  torch::Tensor order_state_;  // of the generator, when the epoch began
  std::map<std::string, torch::Tensor> tensors_;
  std::vector<double> step_seconds_;  // of this process
  double look_seconds_ = 0;           // of looking in this step
  double started_ = 0;                // this process, by the clock
  std::int64_t first_step_ = 0;       // of this process
};

// On the test samples.
struct Evaluation {
  double loss, accuracy;
};
Evaluation evaluate(Part& network, const Batches& batches);

// FNV-1a over the bytes of the tensors, in hexadecimal digits.
std::string hash_of(const std::vector<torch::Tensor>& tensors);

}  // namespace slimgrad::trainer

#endif  // SLIMGRAD_TRAINER_TRAINING_H_
