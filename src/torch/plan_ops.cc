// What looks at the plans of all layers at once, before a step: heterogeneous sparsity, and the
// dynamic global loss scale (a baseline).
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <algorithm>
#include <vector>

#include <slimgrad/allocation.h>

#include "base/check.h"
#include "torch/errors.h"
#include "torch/plan_tensor.h"

namespace slimgrad::torch_ops {
namespace {

void check_lists(at::TensorList plans, at::TensorList stats, const char* op) {
  check(plans.size() == stats.size(), op, "as many stats as plans", stats.size(), " and ",
        plans.size());
  for (const at::Tensor& layer : stats) check_layer_stats(layer, op);
}

// Layers that have been compressed at least once, with the statistics of their last sample.
std::vector<std::size_t> measured_layers(at::TensorList stats) {
  std::vector<std::size_t> measured;
  for (std::size_t i = 0; i < stats.size(); ++i)
    if (stats[i].const_data_ptr<double>()[kReportCompressed] != 0) measured.push_back(i);
  return measured;
}

void allocate_plans(at::TensorList plans, at::TensorList stats, double sparsity,
                    std::string_view objective, std::string_view method, double cap) {
  check_lists(plans, stats, "allocate_plans_");
  const std::vector<std::size_t> measured = measured_layers(stats);
  if (measured.empty()) return;
  std::vector<TensorStats> layers;
  double count = 0, least = 0, most = 0;
  for (const std::size_t i : measured) {
    layers.push_back(stats_from_tensor(stats[i].slice(0, 0, kStatsTensorSize), "allocate_plans_"));
    const auto n = static_cast<double>(layers.back().num_finite());
    count += n;
    least += n * layers.back().zero_fraction;
    most += n * std::max(cap, layers.back().zero_fraction);
  }
  // Gradients that are sparser than wanted already are not a mistake of the user's.
  const double reachable = std::clamp(sparsity, least / count, most / count);
  const auto allocation = allocate(layers, reachable, parse_allocation_objective(objective),
                                   parse_threshold_method(method), cap);
  for (std::size_t k = 0; k < measured.size(); ++k)
    plans[measured[k]].mutable_data_ptr<double>()[kPlanSparsity] =
        std::min(allocation[k].sparsity, 1 - 1e-9);
}

// Halves the loss scale, which is the inverse of the grid's, as soon as a layer exceeds the grid;
// doubles it after growth_interval steps without.
void update_loss_scale(at::TensorList plans, at::TensorList stats, std::int64_t growth_interval) {
  check_lists(plans, stats, "update_loss_scale_");
  check(growth_interval > 0, "update_loss_scale_", "growth_interval > 0", growth_interval);
  const std::vector<std::size_t> measured = measured_layers(stats);
  if (measured.empty()) return;
  const bool overflow = std::any_of(measured.begin(), measured.end(), [&](std::size_t i) {
    return stats[i].const_data_ptr<double>()[kReportSaturated] != 0;
  });
  for (const at::Tensor& tensor : plans) {
    double* plan = tensor.mutable_data_ptr<double>();
    plan[kPlanGoodSteps] = overflow ? 0 : plan[kPlanGoodSteps] + 1;
    if (overflow) plan[kPlanFixedScale] *= 2;
    if (plan[kPlanGoodSteps] >= static_cast<double>(growth_interval)) {
      plan[kPlanFixedScale] /= 2;
      plan[kPlanGoodSteps] = 0;
    }
  }
}

void nothing(at::TensorList, at::TensorList, double, std::string_view, std::string_view, double) {}
void nothing_either(at::TensorList, at::TensorList, std::int64_t) {}

}  // namespace

TORCH_LIBRARY_IMPL(slimgrad, CPU, m) {
  m.impl("allocate_plans_", ValueErrors<&allocate_plans>::call);
  m.impl("update_loss_scale_", ValueErrors<&update_loss_scale>::call);
}
TORCH_LIBRARY_IMPL(slimgrad, Meta, m) {
  m.impl("allocate_plans_", nothing);
  m.impl("update_loss_scale_", nothing_either);
}

}  // namespace slimgrad::torch_ops
