// allocate_plans_ and update_loss_scale_: what looks at all gates at once (slimgrad/gate.h), on
// the tensors that hold them.
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <algorithm>
#include <span>
#include <vector>

#include <slimgrad/gate.h>

#include "base/check.h"
#include "torch/checks.h"
#include "torch/decide/plan_tensor.h"
#include "torch/decide/state_place.h"
#include "torch/errors.h"
#include "torch/no_gradient.h"

namespace slimgrad::torch_ops {
namespace {

constexpr const char *kAllocate = "allocate_plans_", *kUpdate = "update_loss_scale_";

// The gates behind the plans and statistics of layers; write() brings back what changed.
class Gates {
 public:
  Gates(at::TensorList plans, at::TensorList stats, const char* op)
      : lock_(lock_plans()), copies_(together(plans, stats, op)) {
    const std::size_t size = plans.size();
    gates_.reserve(size);  // so that records may point at them
    for (std::size_t i = 0; i < size; ++i) {
      const at::Tensor &plan = copies_.here()[i], &seen = copies_.here()[size + i];
      check_layer_stats(seen, op);
      gates_.push_back(read_plan(plan, op));
      records_.push_back({&gates_.back(), gate_report(plan, seen),
                          stats_from_tensor(seen.slice(0, 0, kStatsTensorSize), op)});
    }
  }

  std::span<GateRecord> records() { return records_; }
  void write() const {
    for (std::size_t i = 0; i < gates_.size(); ++i) write_plan(gates_[i], copies_.here()[i]);
    copies_.write_back(gates_.size());
  }

 private:
  static std::vector<at::Tensor> together(at::TensorList plans, at::TensorList stats,
                                          const char* op) {
    check(plans.size() == stats.size(), op, "as many stats as plans", stats.size(), " and ",
          plans.size());
    std::vector<at::Tensor> all = plans.vec();
    all.insert(all.end(), stats.begin(), stats.end());
    return all;
  }

  const std::unique_lock<std::recursive_mutex> lock_;
  const HostCopies copies_;
  std::vector<GateState> gates_;
  std::vector<GateRecord> records_;
};

void allocate_plans_op(at::TensorList plans, at::TensorList stats, std::string_view objective,
                       std::string_view method, double cap, at::IntArrayRef target_layers,
                       at::ArrayRef<double> target_cosines) {
  check(target_layers.size() == target_cosines.size(), kAllocate,
        "as many target cosines as target layers", target_cosines.size(), " and ",
        target_layers.size());
  std::vector<CosineTarget> targets;
  for (std::size_t t = 0; t < target_layers.size(); ++t)
    targets.push_back({static_cast<std::size_t>(target_layers[t]), target_cosines[t]});
  allocate_plans(plans, stats, parse_allocation_objective(objective),
                 parse_threshold_method(method), cap, targets);
}

// Where nothing is computed: some without values beside others that have some are no state.
void check_meta_plans(at::TensorList plans, at::TensorList stats, const char* op) {
  for (std::size_t i = 0; i < std::min(plans.size(), stats.size()); ++i) {
    check_meta_state(stats[i], plans[i], plan_size(), op, "plan");
    check_meta_state(plans[i], stats[i], layer_stats_size(), op, "stats");
  }
}
void allocate_meta(at::TensorList plans, at::TensorList stats, std::string_view, std::string_view,
                   double, at::IntArrayRef, at::ArrayRef<double>) {
  check_meta_plans(plans, stats, kAllocate);
}
void update_meta(at::TensorList plans, at::TensorList stats, std::int64_t) {
  check_meta_plans(plans, stats, kUpdate);
}

}  // namespace

void allocate_plans(at::TensorList plans, at::TensorList stats, AllocationObjective objective,
                    ThresholdMethod method, double cap, std::span<const CosineTarget> targets) {
  Gates gates(plans, stats, kAllocate);
  allocate_sparsity(gates.records(), objective, method, cap, targets, kAllocate);
  gates.write();
}

void update_loss_scales(at::TensorList plans, at::TensorList stats, std::int64_t growth_interval) {
  Gates gates(plans, stats, kUpdate);
  update_loss_scale(gates.records(), growth_interval, kUpdate);
  gates.write();
}

// For every device, so that a state elsewhere gets the one error there is for it.
TORCH_LIBRARY_IMPL(slimgrad, CompositeExplicitAutograd, m) {
  m.impl("allocate_plans_", ValueErrors<&allocate_plans_op>::call);
  m.impl("update_loss_scale_", ValueErrors<&update_loss_scales>::call);
}
TORCH_LIBRARY_IMPL(slimgrad, Autograd, m) {
  m.impl("allocate_plans_", no_gradient());
  m.impl("update_loss_scale_", no_gradient());
}
TORCH_LIBRARY_IMPL(slimgrad, Meta, m) {
  m.impl("allocate_plans_", ValueErrors<&allocate_meta>::call);
  m.impl("update_loss_scale_", ValueErrors<&update_meta>::call);
}

}  // namespace slimgrad::torch_ops
