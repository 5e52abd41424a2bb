// The state of slimgrad's modules: settings, counters and seeds, the plans in force. It is no part
// of a module's parameters and buffers, so torch::save writes the archive that the same network
// without slimgrad writes, and each reads the other's; .to() moves and rounds none of it. A run
// that is to go on to the bit saves it beside:
//
//   const std::vector<char> bytes =
//   torch::pickle_save(slimgrad::nn::to_dict(state_dict(*network)));
//   ...
//   for (const auto& said : load_state_dict(*network, to_state(torch::pickle_load(bytes))))
//     std::cerr << "slimgrad: " << said << '\n';
//
// Not for two threads at once, nor while a backward pass runs.
#ifndef SLIMGRAD_NN_STATE_H_
#define SLIMGRAD_NN_STATE_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/nn/module.h>
#include <torch/ordered_dict.h>

#include <string>
#include <vector>

namespace slimgrad::nn {

// Modules that hold state of ours are one of these, and are registered under kStateName where they
// belong to a layer. Like all of torch's modules they are copied as handles: reset() makes the
// tensors a copy's own.
class StateOwner {
 public:
  struct Gate {
    std::string name;  // of a layer's product, "weight" or "input"; empty for a gate by itself
    at::Tensor plan, stats;
  };
  struct Tensors {
    std::vector<Gate> gates;
    at::Tensor choice;  // undefined: of no sparse layer
  };

  virtual ~StateOwner() = default;
  virtual Tensors state_tensors() const = 0;
};
inline constexpr const char* kStateName = "slimgrad_state";

using StateDict = torch::OrderedDict<std::string, at::Tensor>;

// Copies of all state in `module` and below, by the names of its layers: "fc1.plan" and "fc1.stats"
// of a gate; "fc1.weight.plan", "fc1.weight.stats", the same for "input", and "fc1.choice" of a
// sparse layer; and "version".
StateDict state_dict(const torch::nn::Module& module);

// Goes on where a saved network was; load_gate() and load_sparse_choice() say what is taken over.
// Settings stay those of `module`. Returns in words which ones differ, and which layers the state
// or the module does not have. Throws InvalidArgument for a damaged state, and then nothing has
// changed.
std::vector<std::string> load_state_dict(torch::nn::Module& module, const StateDict& state);

// For archives: a dictionary of names and tensors, and back. to_state() throws InvalidArgument for
// anything else.
c10::IValue to_dict(const StateDict& state);
StateDict to_state(const c10::IValue& dict);

}  // namespace slimgrad::nn

#endif  // SLIMGRAD_NN_STATE_H_
