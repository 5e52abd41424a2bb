// state_dict() and load_state_dict() of modules: those of a group of all their gates.
#include <slimgrad/nn.h>

#include <ATen/core/Dict.h>
#include <ATen/ops/scalar_tensor.h>

#include <map>
#include <string>
#include <vector>

#include "base/check.h"

namespace slimgrad::nn {
namespace {

constexpr const char* kLoadState = "load_state_dict";
constexpr const char* kVersionKey = "version";
constexpr std::int64_t kStateVersion = 1;

// The name of the layer whose child has its state.
std::string layer_of(const std::string& path) {
  const std::string ending = "." + std::string(kStateName);
  if (path == kStateName) return "";
  return path.ends_with(ending) ? path.substr(0, path.size() - ending.size()) : path;
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

}  // namespace

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
