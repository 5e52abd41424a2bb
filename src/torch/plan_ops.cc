// What looks at the plans of all layers at once, before a step: heterogeneous sparsity, and the
// dynamic global loss scale (a baseline).
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <algorithm>
#include <vector>

#include <slimgrad/allocation.h>

#include "base/check.h"
#include "torch/errors.h"
#include "torch/no_gradient.h"
#include "torch/plan_tensor.h"

namespace slimgrad::torch_ops {
namespace {

void check_lists(at::TensorList plans, at::TensorList stats, const char* op) {
  check(plans.size() == stats.size(), op, "as many stats as plans", stats.size(), " and ",
        plans.size());
  for (const at::Tensor& plan : plans) check_plan(plan, op);
  for (const at::Tensor& layer : stats) check_layer_stats(layer, op);
}

// Layers that are to be compressed, not too small and past their warm-up, and have been measured. A
// product of a sparse layer that was done densely last time is one of them.
std::vector<std::size_t> measured_layers(at::TensorList plans, at::TensorList stats) {
  std::vector<std::size_t> measured;
  for (std::size_t i = 0; i < stats.size(); ++i) {
    const double* plan = plans[i].const_data_ptr<double>();
    const double* values = stats[i].const_data_ptr<double>();
    if (values[kReportElements] >= plan[kPlanMinElements] && plan[kPlanCalls] > plan[kPlanWarmup] &&
        values[kCountField] > values[kNonfiniteField])
      measured.push_back(i);
  }
  return measured;
}

void allocate_plans(at::TensorList plans, at::TensorList stats, std::string_view objective,
                    std::string_view method, double cap, at::IntArrayRef target_layers,
                    at::ArrayRef<double> target_cosines) {
  constexpr const char* kOp = "allocate_plans_";
  check_lists(plans, stats, kOp);
  check(target_layers.size() == target_cosines.size(), kOp,
        "as many target cosines as target layers", target_cosines.size(), " and ",
        target_layers.size());
  const std::vector<std::size_t> measured = measured_layers(plans, stats);
  if (measured.empty()) return;
  const double sparsity = plans[0].const_data_ptr<double>()[kPlanTarget];
  check(sparsity >= 0 && sparsity < 1, kOp, "0 <= target sparsity < 1 in the plans", sparsity);
  std::vector<TensorStats> layers;
  for (const std::size_t i : measured)
    layers.push_back(stats_from_tensor(stats[i].slice(0, 0, kStatsTensorSize), kOp));
  // A target of a layer that is too small to be compressed waits until it is not.
  std::vector<CosineTarget> targets;
  for (std::size_t t = 0; t < target_layers.size(); ++t) {
    check(target_layers[t] >= 0 && target_layers[t] < static_cast<std::int64_t>(plans.size()), kOp,
          "targets for some of the layers", "one for layer ", target_layers[t], " of ",
          plans.size());
    const auto place = std::ranges::find(measured, static_cast<std::size_t>(target_layers[t]));
    if (place != measured.end())
      targets.push_back({static_cast<std::size_t>(place - measured.begin()), target_cosines[t]});
  }
  AllocationObjective rest_by = parse_allocation_objective(objective);
  if (rest_by == AllocationObjective::kTargets) rest_by = AllocationObjective::kMinCosine;
  // Gradients that are sparser than wanted already are not a mistake of the user's.
  const auto allocation = allocate(layers, sparsity, rest_by, parse_threshold_method(method), cap,
                                   targets, OutOfReach::kNearest);
  for (std::size_t k = 0; k < measured.size(); ++k)
    plans[measured[k]].mutable_data_ptr<double>()[kPlanSparsity] =
        std::min(allocation[k].sparsity, 1 - 1e-9);
  // The zeros of the last gradient may be more than those of the next, of which none is to be made.
  for (const CosineTarget& target : targets)
    if (target.cosine == 1)
      plans[measured[target.layer]].mutable_data_ptr<double>()[kPlanSparsity] = 0;
}

// Halves the loss scale, which is the inverse of the grid's, as soon as a layer exceeds the grid;
// doubles it after growth_interval steps without.
void update_loss_scale(at::TensorList plans, at::TensorList stats, std::int64_t growth_interval) {
  check_lists(plans, stats, "update_loss_scale_");
  check(growth_interval > 0, "update_loss_scale_", "growth_interval > 0", growth_interval);
  const std::vector<std::size_t> measured = measured_layers(plans, stats);
  if (measured.empty()) return;
  // A forward pass without a backward pass, as in evaluation, says nothing new.
  bool is_new = false;
  for (const at::Tensor& tensor : plans) {
    double* plan = tensor.mutable_data_ptr<double>();
    is_new |= plan[kPlanSeenCalls] != plan[kPlanCalls];
    plan[kPlanSeenCalls] = plan[kPlanCalls];
  }
  if (!is_new) return;
  const bool overflow = std::any_of(measured.begin(), measured.end(), [&](std::size_t i) {
    return stats[i].const_data_ptr<double>()[kReportSaturated] != 0;
  });
  for (const at::Tensor& tensor : plans) {
    double* plan = tensor.mutable_data_ptr<double>();
    const double good_steps = overflow ? 0 : plan[kPlanGoodSteps] + 1;
    const bool grows = good_steps >= static_cast<double>(growth_interval);
    plan[kPlanGoodSteps] = grows ? 0 : good_steps;
    if (!overflow && !grows) continue;
    plan[kPlanFixedScale] *= overflow ? 2 : 0.5;
    plan[kPlanDue] = 1;
  }
}

void nothing(at::TensorList, at::TensorList, std::string_view, std::string_view, double,
             at::IntArrayRef, at::ArrayRef<double>) {}
void nothing_either(at::TensorList, at::TensorList, std::int64_t) {}

}  // namespace

TORCH_LIBRARY_IMPL(slimgrad, CPU, m) {
  m.impl("allocate_plans_", ValueErrors<&allocate_plans>::call);
  m.impl("update_loss_scale_", ValueErrors<&update_loss_scale>::call);
}
TORCH_LIBRARY_IMPL(slimgrad, Autograd, m) {
  m.impl("allocate_plans_", no_gradient());
  m.impl("update_loss_scale_", no_gradient());
}
TORCH_LIBRARY_IMPL(slimgrad, Meta, m) {
  m.impl("allocate_plans_", nothing);
  m.impl("update_loss_scale_", nothing_either);
}

}  // namespace slimgrad::torch_ops
