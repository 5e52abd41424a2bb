// What the gates of a network did over a whole run.
#ifndef SLIMGRAD_TRAINER_GRADIENT_TOTALS_H_
#define SLIMGRAD_TRAINER_GRADIENT_TOTALS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace slimgrad {
struct GateReport;  // in gradient_gate.h, which needs torch
}

namespace slimgrad::trainer {

// The name of a layer, and what the gate behind it did in a backward pass.
using LayerReport = std::pair<std::string, GateReport>;

// Sums over the backward passes of one layer.
struct LayerTotals {
  std::string name;
  std::int64_t values = 0;      // that went through the gate
  std::int64_t compressed = 0;  // of them: small gradients are left alone
  double zeros = 0;             // of the compressed ones
  double bits = 0;              // of all
  double worst_miss = 0;        // largest |sparsity achieved - wanted| of a backward pass
  double cosine = 0;            // summed over compressed values
  std::string last_format;      // that the gradients were rounded to; empty without rounding
};

class GradientTotals {
 public:
  // Call once after every backward pass, with all layers in the same order.
  void add(const std::vector<LayerReport>& reports);

  const std::vector<LayerTotals>& layers() const { return layers_; }
  double sparsity() const;        // of the compressed values
  double bits_per_value() const;  // of all; 32 without gates
  double worst_miss() const;

 private:
  std::vector<LayerTotals> layers_;
};

}  // namespace slimgrad::trainer

#endif  // SLIMGRAD_TRAINER_GRADIENT_TOTALS_H_
