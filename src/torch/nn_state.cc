#include <slimgrad/nn.h>

#include <ATen/core/Dict.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <slimgrad/gradient_gate.h>
#include <slimgrad/seed.h>
#include <slimgrad/sparse_layers.h>

#include "base/check.h"
#include "torch/fresh_seed.h"

namespace slimgrad::nn {
namespace {

constexpr const char* kLoadState = "load_state_dict";
constexpr const char* kVersionKey = "version";
constexpr std::int64_t kStateVersion = 1;

std::string join(const std::string& name, const std::string& key) {
  return name.empty() || key.empty() ? name + key : name + "." + key;
}

std::string in_quotes(const std::string& key) { return std::string(1, '"').append(key) + '"'; }

// The name of a layer, of a key behind it.
std::string without(const std::string& name, std::string_view last) {
  if (name == last) return "";
  const std::string ending = std::string(1, '.').append(last);
  return name.ends_with(ending) ? name.substr(0, name.size() - ending.size()) : name;
}

// The name of a layer, or of an attention's projection, of the path of the child that has its
// state.
std::string layer_of(const std::string& path) {
  std::string name;
  for (std::size_t first = 0; first <= path.size();) {
    const std::size_t end = std::min(path.find('.', first), path.size());
    const std::string part = path.substr(first, end - first);
    if (part != kStateName) name = join(name, part);
    first = end + 1;
  }
  return name;
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
      states.push_back({layer_of(path), owner->state_tensors()});
  };
  add("", module);  // itself apart: it need not be held by a pointer
  for (const auto& item : module.named_modules("", /*include_self=*/false))
    add(item.key(), *item.value());
  return states;
}

void check_version(const StateDict& state) {
  const at::Tensor* const version = state.find(kVersionKey);
  check(version != nullptr && version->defined() && version->numel() == 1, kLoadState,
        "a state with a version", version == nullptr ? "none" : "no number");
  const auto number = version->item<double>();
  check(number == kStateVersion, kLoadState, "a state of version 1", "version ", number);
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

at::Tensor new_product_plan(const SparseOptions& options, std::uint64_t seed, bool for_weight) {
  GateOptions gate = options.gate;
  gate.settings.prune = PruneKind::kStochastic;
  gate.settings.sparsity = for_weight ? options.weight_sparsity : options.input_sparsity;
  gate.seed = derive_seed(seed, {for_weight ? "weight" : "input"});
  return new_gate_plan(gate, "SparseOptions");
}

}  // namespace

ProductPlans new_product_plans(const SparseOptions& options) {
  const GradientSettings& settings = options.gate.settings;
  constexpr const char* kOp = "SparseOptions";
  check(settings.sparsity == 0, kOp, "weight_sparsity and input_sparsity",
        "gate.settings.sparsity");
  check(settings.prune == PruneKind::kNone || settings.prune == PruneKind::kStochastic, kOp,
        "stochastic pruning", prune_kind_name(settings.prune));
  check(settings.bits == 0, kOp, "0 bits", settings.bits);
  const std::uint64_t seed = options.gate.seed ? *options.gate.seed : torch_ops::fresh_seed();
  return {new_product_plan(options, seed, true), new_product_plan(options, seed, false)};
}

StateDict state_dict(const torch::nn::Module& module) {
  StateDict state("State");
  for (const NamedState& layer : states_in(module))
    for (const auto& [key, tensor] : layer.items()) state.insert(key, tensor.clone());
  state.insert(kVersionKey, at::scalar_tensor(kStateVersion, at::kLong));
  return state;
}

std::vector<std::string> load_state_dict(torch::nn::Module& module, const StateDict& state) {
  check_version(state);
  std::vector<std::string> said;
  std::set<std::string> known{kVersionKey};
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
