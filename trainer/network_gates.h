// The gates of a network: what they did, and what looks at all of them between two steps.
#ifndef SLIMGRAD_TRAINER_NETWORK_GATES_H_
#define SLIMGRAD_TRAINER_NETWORK_GATES_H_

#include <torch/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "trainer/gradient_choice.h"
#include "trainer/gradient_totals.h"
#include "trainer/networks.h"

namespace slimgrad::trainer {

class NetworkGates {
 public:
  // Throws InvalidArgument for a target that names no layer.
  NetworkGates(Part& network, const GradientChoice& choice);

  // Spreads sparsity, updates a dynamic loss scale.
  void before_step();
  // Every gate chooses anew in the next backward pass.
  void refresh();
  // What each gate did in the last backward pass.
  std::vector<LayerReport> reports() const;
  // All that they remember, by name.
  const std::map<std::string, torch::Tensor>& state() const { return state_; }

 private:
  // Gates that share a budget: those of all layers, or of one product of all layers.
  struct Group {
    std::vector<std::string> names;
    std::vector<torch::Tensor> plans, stats;
    std::vector<std::int64_t> target_gates;
    std::vector<double> target_cosines;
  };
  void add(Group& group, const std::string& name, const torch::Tensor& plan,
           const torch::Tensor& stats);
  void set_targets();

  GradientChoice choice_;
  std::vector<Group> groups_;
  std::map<std::string, torch::Tensor> state_;
};

}  // namespace slimgrad::trainer

#endif  // SLIMGRAD_TRAINER_NETWORK_GATES_H_
