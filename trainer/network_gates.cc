#include "trainer/network_gates.h"

#include <algorithm>
#include <string>

#include <slimgrad/error.h>
#include <slimgrad/nn.h>

namespace slimgrad::trainer {
namespace {

GroupOptions options_of(const GradientChoice& choice) {
  const AllocationChoice& allocation = choice.allocation;
  return {.allocation = allocation.objective,
          .method = choice.gates ? choice.gates->method : choice.sparse_method,
          .cap = allocation.cap,
          .targets = {allocation.targets.begin(), allocation.targets.end()},
          .growth_interval = choice.growth_interval};
}

}  // namespace

NetworkGates::NetworkGates(Part& network, const GradientChoice& choice)
    : GateGroup(options_of(choice)) {
  for (const auto* layer : layers_of(network)) {
    if (layer->gate) add(layer->name, layer->gate->plan, layer->gate->stats);
    if (layer->sparse) add(layer->name, *layer->sparse);
  }
  const std::vector<std::string> names = this->names();
  if (names.empty()) return;  // a plain run among others
  for (const auto& [target, cosine] : choice.allocation.targets) {
    if (std::ranges::any_of(names, [&](const std::string& name) {
          return name == target || name.starts_with(target + ".");
        }))
      continue;
    std::string listed;
    for (const std::string& name : names) listed += (listed.empty() ? "" : ", ") + name;
    throw InvalidArgument("--target: expected the name of a layer, one of " + listed + ", got " +
                          target);
  }
}

std::vector<LayerReport> NetworkGates::reports() const {
  std::vector<LayerReport> reports;
  for (const NamedReport& report : GateGroup::reports())
    reports.emplace_back(report.name, report.gate);
  std::ranges::stable_partition(
      reports, [](const LayerReport& report) { return !report.first.ends_with(kInputProduct); });
  return reports;
}

}  // namespace slimgrad::trainer
