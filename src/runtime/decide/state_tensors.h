// The state of a group as tensors alone, as it is saved: what GateGroup::state() has, copied, and
// its settings as tensors of one number.
#ifndef SLIMGRAD_RUNTIME_DECIDE_STATE_TENSORS_H_
#define SLIMGRAD_RUNTIME_DECIDE_STATE_TENSORS_H_

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>

#include <map>
#include <string>

#include <slimgrad/gate_group.h>

namespace slimgrad {

inline const std::string kSettingKey = "setting:";  // in front of what no plan holds

inline std::map<std::string, at::Tensor> state_tensors(const GateGroup& gates) {
  std::map<std::string, at::Tensor> state;
  for (const auto& [name, tensor] : gates.state()) state[name] = tensor.clone();
  for (const auto& [name, value] : gates.settings())
    state[kSettingKey + name] = at::full({1}, value, at::kDouble);
  return state;
}

inline LoadedState load_state_tensors(GateGroup& gates,
                                      const std::map<std::string, at::Tensor>& saved) {
  std::map<std::string, at::Tensor> tensors;
  std::map<std::string, double> settings;
  for (const auto& [name, tensor] : saved) {
    if (!name.starts_with(kSettingKey))
      tensors[name] = tensor;
    else if (tensor.numel() == 1)
      settings[name.substr(kSettingKey.size())] = tensor.item<double>();
  }
  return gates.load_state(tensors, settings);
}

}  // namespace slimgrad

#endif  // SLIMGRAD_RUNTIME_DECIDE_STATE_TENSORS_H_
