// Samples as tensors, a batch at a time.
#ifndef SLIMGRAD_TRAINER_BATCHES_H_
#define SLIMGRAD_TRAINER_BATCHES_H_

#include <torch/types.h>

#include <cstdint>

#include "trainer/data_set.h"

namespace slimgrad::trainer {

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

}  // namespace slimgrad::trainer

#endif  // SLIMGRAD_TRAINER_BATCHES_H_
