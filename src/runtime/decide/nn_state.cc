// state_dict() and load_state_dict() of modules: those of a group of all their gates.
#include <slimgrad/nn.h>

#include <ATen/core/Dict.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <slimgrad/seed.h>

#include "base/check.h"
#include "torch/fresh_seed.h"

namespace slimgrad::nn {
namespace {

constexpr const char* kLoadState = "load_state_dict";
constexpr const char* kVersionKey = "version";
constexpr std::int64_t kStateVersion = 1;

// The name of a layer, or of an attention's projection, from the path of the child that has its
// state.
std::string layer_of(const std::string& path) {
  std::string name;
  for (std::size_t first = 0; first <= path.size();) {
    const std::size_t end = std::min(path.find('.', first), path.size());
    const std::string part = path.substr(first, end - first);
    if (part != kStateName) name += (name.empty() ? "" : ".") + part;
    first = end + 1;
  }
  return name;
}

GateGroup gates_in(const torch::nn::Module& module) {
  GateGroup group;
  const auto add = [&](const std::string& path, const torch::nn::Module& one) {
    if (const auto* owner = dynamic_cast<const StateOwner*>(&one))
      owner->add_to(group, layer_of(path));
  };
  add("", module);  // itself apart: it need not be held by a pointer
  for (const auto& item : module.named_modules("", /*include_self=*/false))
    add(item.key(), *item.value());
  return group;
}

void check_version(const StateDict& state) {
  const at::Tensor* const version = state.find(kVersionKey);
  check(version != nullptr && version->defined() && version->numel() == 1, kLoadState,
        "a state with a version", version == nullptr ? "none" : "no number");
  const auto number = version->item<double>();
  check(number == kStateVersion, kLoadState, "a state of version 1", "version ", number);
}

std::string said_of(const std::string& name, const std::string& words) {
  return name.empty() ? words : name + ": " + words;
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
  for (const auto& [key, tensor] : gates_in(module).state()) state.insert(key, tensor.clone());
  state.insert(kVersionKey, at::scalar_tensor(kStateVersion, at::kLong));
  return state;
}

std::vector<std::string> load_state_dict(torch::nn::Module& module, const StateDict& state) {
  check_version(state);
  std::map<std::string, at::Tensor> tensors;
  // What all layers of a Python controller were told together is its own affair.
  for (const auto& item : state)
    if (item.key() != kVersionKey && !item.key().starts_with("setting:"))
      tensors[item.key()] = item.value();
  const LoadedState found = gates_in(module).load_state(tensors, {});
  std::vector<std::string> said;
  for (const auto& [words, names] : found.differences)
    for (const std::string& name : names) said.push_back(said_of(name, words));
  std::string last;
  for (const std::string& name : found.missing) {
    if (!last.empty() && name.starts_with(last + ".")) continue;  // a product of it
    last = name;
    said.push_back(
        said_of(name, "not in the saved state; this layer starts from its initial state"));
  }
  for (const std::string& name : found.unknown)
    said.push_back(said_of(name, "in the saved state but not in this module; ignored"));
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
