#include "trainer/network_gates.h"

#include <slimgrad/error.h>
#include <slimgrad/nn.h>

#include "torch/find_op.h"

namespace slimgrad::trainer {
namespace {

using torch_ops::find_op;

// Whether a target names this gate, its layer, or something that the layer is part of.
bool is_under(const std::string& gate, const std::string& target) {
  return gate == target || gate.starts_with(target + ".");
}

}  // namespace

NetworkGates::NetworkGates(Part& network, const GradientChoice& choice) : choice_(choice) {
  groups_.resize(choice.sparse ? 2 : 1);
  for (Layer* layer : layers_of(network)) {
    if (layer->gate) add(groups_[0], layer->name, layer->gate->plan, layer->gate->stats);
    if (layer->sparse) {
      const SparseLayerState& sparse = *layer->sparse;
      add(groups_[0], layer->name + std::string(kWeightProduct), sparse.weight_plan,
          sparse.weight_stats);
      add(groups_[1], layer->name + std::string(kInputProduct), sparse.input_plan,
          sparse.input_stats);
      state_[layer->name + ".choice"] = sparse.choice;
    }
  }
  set_targets();
}

void NetworkGates::add(Group& group, const std::string& name, const torch::Tensor& plan,
                       const torch::Tensor& stats) {
  group.names.push_back(name);
  group.plans.push_back(plan);
  group.stats.push_back(stats);
  state_[name + ".plan"] = plan;
  state_[name + ".stats"] = stats;
}

void NetworkGates::set_targets() {
  if (state_.empty()) return;  // a plain run among others
  for (const auto& [target, cosine] : choice_.allocation.targets) {
    bool found = false;
    for (Group& group : groups_)
      for (std::size_t i = 0; i < group.names.size(); ++i) {
        if (!is_under(group.names[i], target)) continue;
        found = true;
        group.target_gates.push_back(static_cast<std::int64_t>(i));
        group.target_cosines.push_back(cosine);
      }
    if (found) continue;
    std::string names;
    for (const std::string& name : groups_[0].names) names += (names.empty() ? "" : ", ") + name;
    throw InvalidArgument("--target: expected the name of a layer, one of " + names + ", got " +
                          target);
  }
}

void NetworkGates::before_step() {
  if (state_.empty()) return;
  const AllocationChoice& allocation = choice_.allocation;
  const ThresholdMethod method = choice_.gates ? choice_.gates->method : choice_.sparse_method;
  for (Group& group : groups_) {
    if (allocation.objective != AllocationObjective::kUniform) {
      static const auto op =
          find_op<void(at::TensorList, at::TensorList, std::string_view, std::string_view, double,
                       at::IntArrayRef, at::ArrayRef<double>)>("slimgrad::allocate_plans_");
      op.call(group.plans, group.stats, objective_name(allocation.objective), method_name(method),
              allocation.cap, group.target_gates, group.target_cosines);
    }
    if (choice_.growth_interval > 0) {
      static const auto op = find_op<void(at::TensorList, at::TensorList, std::int64_t)>(
          "slimgrad::update_loss_scale_");
      op.call(group.plans, group.stats, choice_.growth_interval);
    }
  }
}

void NetworkGates::refresh() {
  static const auto op = find_op<void(at::Tensor)>("slimgrad::refresh_gate_");
  for (Group& group : groups_)
    for (const torch::Tensor& plan : group.plans) op.call(plan);
}

std::vector<LayerReport> NetworkGates::reports() const {
  std::vector<LayerReport> reports;
  for (const Group& group : groups_)
    for (std::size_t i = 0; i < group.names.size(); ++i)
      reports.emplace_back(group.names[i], gate_report(group.plans[i], group.stats[i]));
  return reports;
}

}  // namespace slimgrad::trainer
