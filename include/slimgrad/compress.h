// One call that compresses the neural gradients of a torch::nn network, as slimgrad.compress() does
// for networks of Python: with the same seed and settings the same layers have the same gradients,
// to the bit, wherever torch computes the same in both languages.
//
//   slimgrad::CompressOptions options;
//   options.gate.settings.bits = 6;
//   slimgrad::Compression compression = slimgrad::compress(*network, options);
//   ...
//   compression.backward(loss);  // instead of loss.backward()
//   std::cout << compression.summary();
//
// The modules stay as they are. backward() walks the graph that autograd recorded for the loss,
// finds the products with the layers' weights, and puts a gate (gradient_gate.h) on the node that
// made a layer's output. The walk takes 0.2 microseconds for each node of the graph.
//
// Layers are torch::nn's Linear, convolutions and transposed convolutions, and subclasses, by their
// names in the module; of a MultiheadAttention its projections, ATTENTION.q, .k, .v and .out_proj.
//
// Not here: few-bit activations and layers with a sparse backward pass are modules of nn.h, to be
// used in the place of torch's; what autograd saves is packed by a guard (saved_tensors.h).
//
// One thread at a time may use a Compression. Backward passes through one that is destroyed, or
// removed, are plain.
//
// Surprises. A layer is found by its weight: one whose weight is frozen is left, and of two layers
// with one weight the first has the gate for both. A plain loss.backward() is exact, and warns.
// Double backward throws. Modules that are cloned afterwards are plain.
#ifndef SLIMGRAD_COMPRESS_H_
#define SLIMGRAD_COMPRESS_H_

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <slimgrad/gate_group.h>
#include <slimgrad/nn.h>

namespace slimgrad {

struct CompressOptions {
  // The options of every gate. `seed` is the model's, from which each gate's is derived; without
  // one it comes from torch's generator. `allocation` and `dynamic_scale` follow from `group`.
  GateOptions gate = {};
  GroupOptions group = {};  // `method` follows from `gate`
  std::int64_t stream = 0;  // which of the seed's random numbers: the rank, in a distributed job
  // Names of modules, with all below them. An empty `include` is all of the model.
  std::vector<std::string> include = {}, exclude = {};
};

class Compression {
 public:
  Compression(Compression&&) noexcept;
  Compression& operator=(Compression&&) noexcept;
  ~Compression();  // remove()

  // loss.backward(gradient, retain_graph) through the gates. Before it, sparsity is spread and a
  // dynamic loss scale is updated by what the pass before has seen (GateGroup::before_step()).
  void backward(const at::Tensor& loss, const at::Tensor& gradient = {},
                std::optional<bool> retain_graph = std::nullopt);
  // Does all of that but the backward pass itself, for programs that begin it in another way, with
  // several losses for example. A graph that has its gates already stays as it is.
  void place_gates(at::TensorList losses);

  // The gates, by the names of their layers: refresh(), set_sparsity(), names().
  GateGroup& gates() { return gates_; }
  std::vector<NamedReport> reports() const { return gates_.reports(); }
  std::vector<std::string> warnings() const { return gates_.warnings(); }
  // Modules with weights that have no gate, and why.
  const std::map<std::string, std::string>& left() const { return left_; }
  // A table of the reports, what was left, and the warnings.
  std::string summary() const;

  // What the gates remember, for archives (nn::to_dict()); load_state() continues there, to the
  // bit. Settings stay what they are: it returns in words which ones differ. Also the state of a
  // controller of Python. Throws InvalidArgument for a damaged state, and then nothing has changed.
  nn::StateDict state() const;
  std::vector<std::string> load_state(const nn::StateDict& state);

  // No more gates, and none in graphs that have some. Reports stay.
  void remove();

 private:
  friend Compression compress(torch::nn::Module& module, CompressOptions options);
  struct Layer;
  class Gate;
  explicit Compression(GroupOptions options) : gates_(std::move(options)) {}

  GateGroup gates_;
  std::map<std::string, std::string> left_;
  std::vector<std::shared_ptr<Layer>> layers_;
};

// Throws InvalidArgument for options out of their range, for names that no module has, and for a
// model in which there is no layer to compress, also because all of them have gates of a
// Compression that lives; nothing has changed then.
Compression compress(torch::nn::Module& module, CompressOptions options);

}  // namespace slimgrad

#endif  // SLIMGRAD_COMPRESS_H_
