#include <slimgrad/nn.h>

#include <ATen/core/Dict.h>

#include <array>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <slimgrad/gradient_gate.h>
#include <slimgrad/sparse_layers.h>

#include "base/check.h"
#include "torch/state_version.h"

namespace slimgrad::nn {
namespace {

constexpr const char* kLoadState = "load_state_dict";

std::string join(const std::string& name, const std::string& key) {
  return name.empty() || key.empty() ? name + key : name + "." + key;
}

std::string in_quotes(const std::string& key) { return std::string(1, '"').append(key) + '"'; }

// The name of a layer, of a key behind it or of the child that has its state.
std::string without(const std::string& name, std::string_view last) {
  if (name == last) return "";
  const std::string ending = std::string(1, '.').append(last);
  return name.ends_with(ending) ? name.substr(0, name.size() - ending.size()) : name;
}

struct NamedState {
  std::string layer;
  StateOwner::Tensors tensors;

  // One key for each tensor, as they are saved.
  std::vector<std::pair<std::string, at::Tensor>> items() const {
    std::vector<std::pair<std::string, at::Tensor>> items;
    for (const StateOwner::Gate& gate : tensors.gates) {
      items.emplace_back(join(join(layer, gate.name), "plan"), gate.plan);
      items.emplace_back(join(join(layer, gate.name), "stats"), gate.stats);
    }
    if (tensors.choice.defined()) items.emplace_back(join(layer, "choice"), tensors.choice);
    return items;
  }

  NamedState copy() const {
    NamedState copy = *this;
    for (StateOwner::Gate& gate : copy.tensors.gates)
      gate.plan = gate.plan.clone(), gate.stats = gate.stats.clone();
    if (tensors.choice.defined()) copy.tensors.choice = tensors.choice.clone();
    return copy;
  }
};

std::vector<NamedState> states_in(const torch::nn::Module& module) {
  std::vector<NamedState> states;
  const auto add = [&](const std::string& path, const torch::nn::Module& one) {
    if (const auto* owner = dynamic_cast<const StateOwner*>(&one))
      states.push_back({without(path, kStateName), owner->state_tensors()});
  };
  add("", module);  // itself apart: it need not be held by a pointer
  for (const auto& item : module.named_modules("", /*include_self=*/false))
    add(item.key(), *item.value());
  return states;
}

// What `state` says of one layer, into `ours`; adds what there is to say of it. The layer is not in
// the state if none of its keys is.
void load_layer(NamedState& ours, const StateDict& state, std::vector<std::string>& said) {
  const std::string named = ours.layer.empty() ? "" : ours.layer + ": ";
  std::string missing, found;
  for (const auto& [key, tensor] : ours.items()) (state.contains(key) ? found : missing) = key;
  if (found.empty()) {
    said.push_back(named + "not in the saved state; this layer starts from its initial state");
    return;
  }
  check(missing.empty(), kLoadState, in_quotes(missing) + " beside " + in_quotes(found), "none");
  const auto load = [&](const std::string& keys, const auto& loaded) {
    try {
      for (const std::string& words : loaded()) said.push_back(named + words);
    } catch (const InvalidArgument& error) {
      throw_invalid(kLoadState, keys + " as they were saved", error.what());
    }
  };
  for (const StateOwner::Gate& gate : ours.tensors.gates) {
    const std::string name = join(ours.layer, gate.name);
    const std::string plan = join(name, "plan"), stats = join(name, "stats");
    load(in_quotes(plan) + " and " + in_quotes(stats),
         [&] { return load_gate(gate.plan, gate.stats, state[plan], state[stats]); });
  }
  const std::string choice = join(ours.layer, "choice");
  if (ours.tensors.choice.defined())
    load(in_quotes(choice), [&] { return load_sparse_choice(ours.tensors.choice, state[choice]); });
}

// Layers that the state has and the module has not, each once.
std::vector<std::string> strangers(const StateDict& state, const std::set<std::string>& known) {
  constexpr std::array<std::string_view, 5> kEndings{"plan", "stats", "choice", "weight", "input"};
  std::vector<std::string> names;
  for (const auto& item : state) {
    // What all layers of a Python controller were told together: its own affair.
    if (known.contains(item.key()) || item.key().starts_with("setting:")) continue;
    std::string name = item.key();
    for (const std::string_view ending : kEndings) name = without(name, ending);
    if (names.empty() || names.back() != name) names.push_back(name);
  }
  return names;
}

}  // namespace

StateDict state_dict(const torch::nn::Module& module) {
  StateDict state("State");
  for (const NamedState& layer : states_in(module))
    for (const auto& [key, tensor] : layer.items()) state.insert(key, tensor.clone());
  torch_ops::add_version(state);
  return state;
}

std::vector<std::string> load_state_dict(torch::nn::Module& module, const StateDict& state) {
  torch_ops::check_version(state, kLoadState);
  std::vector<std::string> said;
  std::set<std::string> known{torch_ops::kVersionKey};
  const std::vector<NamedState> states = states_in(module);
  std::vector<NamedState> loaded;  // into copies, so that an error in the last changes nothing
  for (const NamedState& layer : states) {
    for (const auto& [key, tensor] : layer.items()) known.insert(key);
    loaded.push_back(layer.copy());
    load_layer(loaded.back(), state, said);
  }
  for (const std::string& name : strangers(state, known))
    said.push_back((name.empty() ? "" : name + ": ") +
                   "in the saved state but not in this module; ignored");
  for (std::size_t i = 0; i < states.size(); ++i) {
    const auto to = states[i].items(), from = loaded[i].items();
    for (std::size_t k = 0; k < to.size(); ++k) to[k].second.copy_(from[k].second);
  }
  return said;
}

c10::IValue to_dict(const StateDict& state) {
  c10::Dict<std::string, at::Tensor> dict;
  for (const auto& item : state) dict.insert(item.key(), item.value());
  return dict;
}

StateDict to_state(const c10::IValue& dict) {
  check(dict.isGenericDict(), "to_state", "a dictionary of tensors", dict.tagKind());
  StateDict state("State");
  for (const auto& item : dict.toGenericDict()) {
    check(item.key().isString() && item.value().isTensor(), "to_state",
          "a dictionary from strings to tensors", item.key().tagKind(), " and ",
          item.value().tagKind());
    state.insert(item.key().toStringRef(), item.value().toTensor());
  }
  return state;
}

}  // namespace slimgrad::nn
