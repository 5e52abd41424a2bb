// Which layers of a torch::nn module compress() puts gates behind, and why not the others. The same
// as python/slimgrad/compression/selection.py and leftovers.py say for networks of Python.
#ifndef SLIMGRAD_RUNTIME_COMPRESS_SELECTION_H_
#define SLIMGRAD_RUNTIME_COMPRESS_SELECTION_H_

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace slimgrad::gating {

// A weight, and the gates of the products with it. A packed weight, that of an attention, has
// several, which share its rows.
struct SelectedLayer {
  struct Part {
    std::string name;        // of the gate
    std::string module;      // what its seed is derived from,
    std::string projection;  // and of an attention this
    bool is_selected = true;
  };
  at::Tensor weight, bias;  // the bias may be undefined
  std::vector<Part> parts;
};

struct SelectedLayers {
  std::vector<SelectedLayer> layers;
  std::map<std::string, std::string> left;  // by name, the reason
};

// Whether a weight has gates already.
bool has_gates(const at::Tensor& weight);

// Throws InvalidArgument for names that no module has.
SelectedLayers select_layers(const torch::nn::Module& module,
                             const std::vector<std::string>& include,
                             const std::vector<std::string>& exclude);

}  // namespace slimgrad::gating

#endif  // SLIMGRAD_RUNTIME_COMPRESS_SELECTION_H_
