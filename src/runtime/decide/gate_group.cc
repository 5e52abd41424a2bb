#include <slimgrad/gate_group.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <set>

#include "base/check.h"
#include "torch/decide/plan_tensor.h"
#include "torch/decide/state_place.h"

namespace slimgrad {
namespace {

using torch_ops::HostCopies;
using torch_ops::is_on_device;
using torch_ops::lock_plans;
using torch_ops::read_plan;
using torch_ops::write_plan;

constexpr const char* kLoadState = "load_state_dict";

// change(gate) on the state behind a plan.
template <typename Change>
void change_gate(const at::Tensor& plan, const char* op, const Change& change) {
  const auto lock = lock_plans();
  GateState gate = read_plan(plan, op);
  change(gate);
  write_plan(gate, plan);
}

GateState state_of(const at::Tensor& plan, const char* op) {
  const auto lock = lock_plans();
  return read_plan(plan, op);
}

std::string join(const std::string& name, const char* key) {
  return name.empty() ? key : name + "." + key;
}

// The cosine that the gate is to keep, if any target names it or something that it is part of.
std::optional<double> target_of(const std::string& gate,
                                const std::map<std::string, double>& targets) {
  std::optional<double> found;
  std::size_t longest = 0;
  for (const auto& [name, cosine] : targets)
    if ((gate == name || gate.starts_with(name + ".")) && (!found || name.size() > longest))
      found = cosine, longest = name.size();
  return found;
}

// Six digits if they mean this very number, else as many as do.
std::string number_text(std::optional<double> value) {
  if (!value) return "none";
  std::array<char, 40> text;
  std::snprintf(text.data(), text.size(), "%g", *value);
  if (std::strtod(text.data(), nullptr) == *value) return text.data();
  return {text.begin(), std::to_chars(text.begin(), text.end(), *value).ptr};
}

template <typename Map>
auto find_in(const Map& map, const std::string& key) {
  const auto found = map.find(key);
  return found == map.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace

void GateGroup::add(std::string name, const at::Tensor& plan, const at::Tensor& stats) {
  gates_.push_back({std::move(name), plan, stats, {}, false});
}

void GateGroup::add(const std::string& layer, const SparseLayerState& state) {
  gates_.push_back(
      {join(layer, "weight"), state.weight_plan, state.weight_stats, layers_.size(), false});
  gates_.push_back(
      {join(layer, "input"), state.input_plan, state.input_stats, layers_.size(), true});
  layers_.push_back({layer, state.choice});
}

bool GateGroup::counts(const Gate& gate) const {
  // On a device there are those alone that prune (torch/decide/state_place.h).
  return !gate.layer || is_on_device(gate.plan) || state_of(gate.plan, "gates").target > 0;
}

std::vector<std::string> GateGroup::names() const {
  std::vector<std::string> names;
  for (const Gate& gate : gates_)
    if (counts(gate)) names.push_back(gate.name);
  return names;
}

std::vector<const GateGroup::Gate*> GateGroup::budget(bool of_inputs) const {
  std::vector<const Gate*> gates;
  for (const Gate& gate : gates_)
    if (gate.is_input == of_inputs && counts(gate)) gates.push_back(&gate);
  return gates;
}

std::vector<CosineTarget> GateGroup::targets(bool at_inputs) const {
  std::vector<CosineTarget> targets;
  const auto gates = budget(at_inputs);
  for (std::size_t i = 0; i < gates.size(); ++i)
    if (const auto cosine = target_of(gates[i]->name, options_.targets))
      targets.push_back({i, *cosine});
  return targets;
}

void GateGroup::look(bool at_inputs, const Gate* entered) {
  if (options_.growth_interval <= 0 && options_.allocation == AllocationObjective::kUniform) return;
  const auto gates = budget(at_inputs);
  if (gates.empty()) return;
  const auto lock = lock_plans();
  const std::uint64_t passes = torch_ops::num_device_passes();
  std::vector<at::Tensor> tensors;
  for (const Gate* gate : gates) tensors.push_back(gate->plan);
  for (const Gate* gate : gates) tensors.push_back(gate->stats);
  const HostCopies copies(std::move(tensors));
  const at::TensorList here = copies.here(), plans = here.slice(0, gates.size()),
                       stats = here.slice(gates.size());
  if (entered != nullptr) {
    const auto place = std::ranges::find(gates, entered) - gates.begin();
    if (static_cast<std::size_t>(place) == gates.size()) return;
    if (!slimgrad::has_news(read_plan(plans[static_cast<std::size_t>(place)], "enter"))) return;
  }
  // The loss scale first: it asks for news, which an allocation would have seen.
  if (options_.growth_interval > 0)
    torch_ops::update_loss_scales(plans, stats, options_.growth_interval);
  if (options_.allocation != AllocationObjective::kUniform)
    torch_ops::allocate_plans(plans, stats, options_.allocation, options_.method, options_.cap,
                              targets(at_inputs));
  copies.write_back(gates.size());
  looked_at_[at_inputs] = passes;
}

void GateGroup::before_step() {
  for (const bool at_inputs : {false, true}) look(at_inputs);
}

void GateGroup::enter(std::string_view name) {
  const auto gate = std::ranges::find(gates_, name, &Gate::name);
  check(gate != gates_.end(), "enter", "the name of a gate of the group", name);
  if (!is_on_device(gate->plan)) {
    if (slimgrad::has_news(state_of(gate->plan, "enter"))) look(gate->is_input);
    return;
  }
  if (looked_at_[gate->is_input] != torch_ops::num_device_passes()) look(gate->is_input, &*gate);
}

bool GateGroup::has_news(bool at_inputs) const {
  return std::ranges::any_of(budget(at_inputs), [&](const Gate* gate) {
    return is_on_device(gate->plan) ? looked_at_[at_inputs] != torch_ops::num_device_passes()
                                    : slimgrad::has_news(state_of(gate->plan, "has_news"));
  });
}

void GateGroup::refresh() {
  for (const Gate& gate : gates_)
    if (counts(gate)) change_gate(gate.plan, "refresh", [](GateState& state) { state.due = true; });
}

void GateGroup::set_sparsity(double sparsity, std::string_view product) {
  constexpr const char* kOp = "set_sparsity";
  for (const Gate& gate : gates_) {
    if (!product.empty() && gate.is_input != (product == "input")) continue;
    change_gate(gate.plan, kOp, [&](GateState& state) { slimgrad::set_sparsity(state, sparsity); });
    // For counts().
    if (gate.layer && sparsity == 0)
      torch_ops::bring_state_to(c10::kCPU, gate.plan, gate.stats, kOp);
  }
}

void GateGroup::set_ways(SparseWay way, std::string_view product) {
  const auto wanted = [&](const char* name) {
    return product.empty() || product == name ? std::optional(way) : std::nullopt;
  };
  for (const Layer& layer : layers_)
    set_sparse_ways(layer.choice, wanted("weight"), wanted("input"));
}

void GateGroup::time_ways(bool on) {
  for (const Layer& layer : layers_) time_sparse_ways(layer.choice, on);
}

std::vector<NamedReport> GateGroup::reports() const {
  std::vector<NamedReport> reports;
  std::vector<at::Tensor> tensors;
  for (const Gate& gate : gates_) tensors.insert(tensors.end(), {gate.plan, gate.stats});
  const HostCopies copies(std::move(tensors));
  auto here = copies.here().begin();
  for (const Gate& gate : gates_) {
    const at::Tensor &plan = *here++, &stats = *here++;
    reports.push_back({gate.name, counts(gate), gate_report(plan, stats), {}});
    if (!gate.layer) continue;
    const SparseReport both = sparse_report(layers_[*gate.layer].choice);
    reports.back().product = gate.is_input ? both.input : both.weight;
  }
  return reports;
}

std::map<std::string, at::Tensor> GateGroup::state() const {
  std::map<std::string, at::Tensor> tensors;
  std::vector<at::Tensor> all;
  for (const Gate& gate : gates_) all.insert(all.end(), {gate.plan, gate.stats});
  const HostCopies copies(std::move(all));
  auto here = copies.here().begin();
  for (const Gate& gate : gates_) {
    tensors[join(gate.name, "plan")] = *here++;
    tensors[join(gate.name, "stats")] = *here++;
  }
  for (const Layer& layer : layers_) tensors[join(layer.name, "choice")] = layer.choice;
  return tensors;
}

std::map<std::string, double> GateGroup::settings() const {
  std::map<std::string, double> settings = options_.others;
  if (options_.allocation != AllocationObjective::kUniform) {
    settings["cap"] = options_.cap;
    for (const auto& [name, cosine] : options_.targets) settings["target of " + name] = cosine;
  }
  if (options_.growth_interval > 0)
    settings["growth_interval"] = static_cast<double>(options_.growth_interval);
  return settings;
}

LoadedState GateGroup::load_state(const std::map<std::string, at::Tensor>& saved,
                                  const std::map<std::string, double>& saved_settings) {
  LoadedState said;
  // Into copies, so that an error in the last changes nothing.
  std::vector<std::pair<at::Tensor, at::Tensor>> loaded;
  std::set<std::string> known;
  const auto copy = [&](const at::Tensor& tensor) {
    return loaded.emplace_back(tensor, torch_ops::on_host(tensor).clone()).second;
  };
  const auto take = [&](const std::string& name, const auto& load) {
    try {
      for (const std::string& words : load()) {
        auto place = std::ranges::find(said.differences, words, [](auto& d) { return d.first; });
        if (place == said.differences.end()) place = said.differences.insert(place, {words, {}});
        place->second.push_back(name);
      }
    } catch (const InvalidArgument& error) {
      const std::string text = error.what();  // without the name of the function
      throw InvalidArgument("[load_state_dict] " + (name.empty() ? "(model)" : name) + ": " +
                            text.substr(text.find("] ") + 2));
    }
  };
  // Whether the state has a layer: all of its tensors, or none.
  const auto is_saved = [&](const std::string& layer, const std::vector<std::string>& keys) {
    known.insert(keys.begin(), keys.end());
    const auto is_there = [&](const std::string& key) { return saved.contains(key); };
    const bool found = std::ranges::any_of(keys, is_there);
    const auto gap = std::ranges::find_if_not(keys, is_there);
    if (found && gap != keys.end()) throw_invalid(kLoadState, *gap + " in the state", "none");
    if (!found) said.missing.push_back(layer);
    return found;
  };
  const auto load_one = [&](const Gate& gate) {
    const at::Tensor plan = copy(gate.plan), stats = copy(gate.stats);
    take(gate.name, [&] {
      return load_gate(plan, stats, saved.at(join(gate.name, "plan")),
                       saved.at(join(gate.name, "stats")));
    });
  };
  for (std::size_t i = 0; i < gates_.size(); ++i) {
    const Gate& gate = gates_[i];
    std::vector<std::string> keys = {join(gate.name, "plan"), join(gate.name, "stats")};
    if (!gate.layer) {
      if (is_saved(gate.name, keys)) load_one(gate);
      continue;
    }
    const Gate& input = gates_[++i];  // the other product of the layer is the next gate
    const Layer& layer = layers_[*gate.layer];
    const std::string choice = join(layer.name, "choice");
    keys.insert(keys.end(), {join(input.name, "plan"), join(input.name, "stats"), choice});
    if (!is_saved(layer.name, keys)) {
      said.missing.insert(said.missing.end(), {gate.name, input.name});
      continue;
    }
    load_one(gate);
    load_one(input);
    take(layer.name,
         [&, ours = copy(layer.choice)] { return load_sparse_choice(ours, saved.at(choice)); });
  }
  {
    const auto lock = lock_plans();
    for (const auto& [to, from] : loaded) to.copy_(from);
    for (std::uint64_t& looked : looked_at_) looked = ~std::uint64_t{0};
  }

  std::set<std::string> ours, unknown, settings;
  for (const std::string& key : known) ours.insert(key.substr(0, key.rfind('.') + 1));
  for (const auto& [key, tensor] : saved) {
    if (known.contains(key)) continue;
    const std::size_t dot = key.rfind('.');
    // A layer with a gate is not the one with a sparse backward pass that has its name.
    const std::string name = dot == key.npos ? "" : key.substr(0, dot);
    unknown.insert(ours.contains(name.empty() ? "" : name + ".") ? name + " (of another kind)"
                                                                 : name);
  }
  said.unknown.assign(unknown.begin(), unknown.end());
  const std::map<std::string, double> our_settings = this->settings();
  for (const auto& [name, value] : our_settings) settings.insert(name);
  for (const auto& [name, value] : saved_settings) settings.insert(name);
  for (const std::string& name : settings) {
    const auto here = find_in(our_settings, name), there = find_in(saved_settings, name);
    if (here != there)
      said.settings.push_back(name + " " + number_text(here) + ", the state has " +
                              number_text(there));
  }
  return said;
}

}  // namespace slimgrad
