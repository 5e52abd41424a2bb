#include <slimgrad/gate.h>

#include <algorithm>
#include <vector>

#include "base/check.h"

namespace slimgrad {
namespace {

void mark_as_seen(std::span<GateRecord> gates) {
  for (const GateRecord& record : gates) record.gate->seen_calls = record.gate->calls;
}

}  // namespace

bool GateRecord::counts() const {
  return report.elements >= gate->options.min_elements && gate->calls > gate->options.warmup &&
         stats.num_finite() > 0;
}

void allocate_sparsity(std::span<GateRecord> gates, AllocationObjective objective,
                       ThresholdMethod method, double cap, std::span<const CosineTarget> targets,
                       std::string_view op) {
  mark_as_seen(gates);
  std::vector<std::size_t> places;
  std::vector<TensorStats> layers;
  for (std::size_t i = 0; i < gates.size(); ++i)
    if (gates[i].counts()) {
      places.push_back(i);
      layers.push_back(gates[i].stats);
    }
  std::vector<CosineTarget> measured_targets;
  for (const CosineTarget& target : targets) {
    check(target.layer < gates.size(), op, "targets whose layer is the index of a gate",
          "one for layer ", target.layer, " of ", gates.size());
    const auto place = std::ranges::find(places, target.layer);
    if (place != places.end())
      measured_targets.push_back({static_cast<std::size_t>(place - places.begin()), target.cosine});
  }
  if (places.empty()) return;
  const double sparsity = gates.front().gate->target;
  check(sparsity >= 0 && sparsity < 1, op, "0 <= target sparsity < 1 in the plans", sparsity);
  if (objective == AllocationObjective::kTargets) objective = AllocationObjective::kMinCosine;
  const auto allocation =
      allocate(layers, sparsity, objective, method, cap, measured_targets, OutOfReach::kNearest);
  const auto sparsity_of = [&](std::size_t k) -> double& {
    return gates[places[k]].gate->options.settings.sparsity;
  };
  for (std::size_t k = 0; k < places.size(); ++k)
    sparsity_of(k) = std::min(allocation[k].sparsity, 1 - 1e-9);
  // The zeros of the last gradient may be more than those of the next, of which none is to be made.
  for (const CosineTarget& target : measured_targets)
    if (target.cosine == 1) sparsity_of(target.layer) = 0;
}

void update_loss_scale(std::span<GateRecord> gates, std::int64_t growth_interval,
                       std::string_view op) {
  check(growth_interval > 0, op, "growth_interval > 0", growth_interval);
  // A forward pass without a backward pass, as in evaluation, says nothing new; nor does the old
  // report of a layer that the last one did not reach.
  bool is_new = false, overflow = false;
  for (const GateRecord& record : gates) {
    if (!record.counts() || !has_news(*record.gate)) continue;
    is_new = true;
    overflow |= record.report.saturated;
  }
  mark_as_seen(gates);
  if (!is_new) return;
  for (const GateRecord& record : gates) {
    GateState& gate = *record.gate;
    gate.good_steps = overflow ? 0 : gate.good_steps + 1;
    const bool grows = gate.good_steps >= growth_interval;
    if (grows) gate.good_steps = 0;
    if (!overflow && !grows) continue;
    gate.options.settings.fixed_scale *= overflow ? 2 : 0.5;
    gate.due = true;
  }
}

}  // namespace slimgrad
