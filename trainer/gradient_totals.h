// What the gates of a network did, over an epoch or a whole run.
#ifndef SLIMGRAD_TRAINER_GRADIENT_TOTALS_H_
#define SLIMGRAD_TRAINER_GRADIENT_TOTALS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <slimgrad/gate.h>

namespace slimgrad::trainer {

// The name of a layer, and what the gate behind it did in a backward pass. With a sparse backward
// pass a layer has two gates, LAYER.weight and LAYER.input.
using LayerReport = std::pair<std::string, GateReport>;
inline constexpr std::string_view kWeightProduct = ".weight", kInputProduct = ".input";

// Sums over the backward passes of one gate.
struct LayerTotals {
  std::string name;
  bool seen_before = false;  // the gradient is that of LAYER.weight
  std::int64_t passes = 0, compressed_passes = 0;
  std::int64_t values = 0;      // that went through the gate
  std::int64_t compressed = 0;  // of them: small gradients are left alone
  std::int64_t nonfinite = 0;
  std::int64_t saturated_passes = 0;  // in which a value exceeded the grid
  double log_std = 0;                 // summed over passes
  // Over compressed passes, each weighted by its values: for means over values.
  double zeros = 0, wanted = 0, cosine = 0, relative_error = 0, bias = 0;
  double bits = 0;        // of all values
  double worst_miss = 0;  // largest |sparsity achieved - wanted| of a backward pass
  // The last pass.
  double last_threshold = 0, last_scale = 0;
  std::string last_format;  // empty without rounding
};

class GradientTotals {
 public:
  // Call once after every backward pass, with all layers in the same order. `stored`: as compressed
  // gradients could be; what a sparse product leaves out is not.
  void add(const std::vector<LayerReport>& reports, bool stored);

  const std::vector<LayerTotals>& layers() const { return layers_; }
  double sparsity() const;        // of the compressed values
  double bits_per_value() const;  // of all; 32 without gates
  double worst_miss() const;
  std::int64_t num_values() const;  // of gradients: one that two gates see counts once

  std::vector<LayerTotals>& mutable_layers() { return layers_; }  // for restoring them

 private:
  std::vector<LayerTotals> layers_;
};

}  // namespace slimgrad::trainer

#endif  // SLIMGRAD_TRAINER_GRADIENT_TOTALS_H_
