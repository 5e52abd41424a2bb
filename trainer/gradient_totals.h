// What the gates of a network did over a whole run.
#ifndef SLIMGRAD_TRAINER_GRADIENT_TOTALS_H_
#define SLIMGRAD_TRAINER_GRADIENT_TOTALS_H_

#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <vector>

#include <slimgrad/gradient_gate.h>

namespace slimgrad::trainer {

// Sums over the backward passes of one layer.
struct LayerTotals {
  std::string name;
  std::int64_t values = 0;      // that went through the gate
  std::int64_t compressed = 0;  // of them: small gradients are left alone
  double zeros = 0;             // of the compressed ones
  double bits = 0;              // of all
  double worst_miss = 0;        // largest |sparsity achieved - wanted| of a backward pass
  double cosine = 0;            // summed over compressed values
  GateReport last;
};

class GradientTotals {
 public:
  // Call once after every backward pass; reads a few numbers a layer.
  void add(const torch::nn::Sequential& network);

  const std::vector<LayerTotals>& layers() const { return layers_; }
  double sparsity() const;        // of the compressed values
  double bits_per_value() const;  // of all; 32 without gates
  double worst_miss() const;

 private:
  std::vector<LayerTotals> layers_;
};

}  // namespace slimgrad::trainer

#endif  // SLIMGRAD_TRAINER_GRADIENT_TOTALS_H_
