// What networks are made of. A convolution or linear layer has a gate behind it, or a sparse
// backward pass, as the user chose; activations keep what the user chose. Everything is a Part:
// tensor in, tensor out.
#ifndef SLIMGRAD_TRAINER_PARTS_H_
#define SLIMGRAD_TRAINER_PARTS_H_

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <slimgrad/sparse_layers.h>

#include "trainer/gradient_choice.h"
#include "trainer/run.h"

namespace slimgrad::nn {
class GradientGateImpl;
}

namespace slimgrad::trainer {

using TensorFunction = std::function<torch::Tensor(const torch::Tensor&)>;

class Part : public torch::nn::Module {
 public:
  virtual torch::Tensor forward(torch::Tensor x) = 0;
};
using PartPtr = std::shared_ptr<Part>;

// Parts, and functions without parameters, one after the other.
class Chain : public Part {
 public:
  Chain& add(std::string name, PartPtr part);
  Chain& then(TensorFunction function);
  torch::Tensor forward(torch::Tensor x) override;

 private:
  std::vector<TensorFunction> steps_;
};

// Looks at the gradients of layers' outputs, as they arrive, before they are compressed.
struct GradientWatch {
  bool on = false;
  std::function<void(const std::string& layer, const torch::Tensor& gradient)> see;
};

// A convolution or linear layer with what compresses the gradient of its output.
class Layer : public Part {
 public:
  torch::Tensor forward(torch::Tensor x) override;

  std::string name;  // in its network; make_network() sets it
  std::shared_ptr<GradientWatch> watch;

  // What there is of it.
  torch::Tensor weight, bias;
  std::optional<torch::Tensor> bias_if_any() const;
  std::shared_ptr<slimgrad::nn::GradientGateImpl> gate;
  std::shared_ptr<SparseLayerState> sparse;  // the tensors that the layer's backward writes

  TensorFunction apply;  // the layer itself
  // The same with other weights; with fake_int4 it is called with rounded ones.
  std::function<torch::Tensor(const torch::Tensor& x, const torch::Tensor& weight)> apply_with;
  bool fake_int4 = false;
};

class Activation : public Part {
 public:
  explicit Activation(const ActivationChoice& choice);
  torch::Tensor forward(torch::Tensor x) override;

  std::int64_t elements = 0;  // of the last forward pass

 private:
  TensorFunction function_;
};

struct NetworkOptions {
  GradientChoice gradients;
  ActivationChoice activations;
  bool batch_norm = true;
  bool fake_int4 = false;  // but for the first and the last layer
  std::uint64_t seed = 1;  // of the draws of backward; weights come from torch's generator
};

enum class FirstWeights {
  kTorch,  // as torch draws them
  kHe,     // normal, so that the gradient keeps its size through a ReLU
  kSmall,  // normal with a deviation of 0.02, biases zero
  kZero,
};

class PartMaker {
 public:
  explicit PartMaker(const NetworkOptions& options) : options_(options) {}

  bool batch_norm() const { return options_.batch_norm; }

  // Zero padding keeps the size at stride 1. A bias unless a normalisation brings its own.
  std::shared_ptr<Layer> convolution(std::int64_t in, std::int64_t out, std::int64_t side,
                                     std::int64_t stride, FirstWeights first, bool bias);
  std::shared_ptr<Layer> linear(std::int64_t in, std::int64_t out,
                                FirstWeights first = FirstWeights::kTorch);
  PartPtr norm(std::int64_t channels);  // batch normalisation
  PartPtr activation() { return std::make_shared<Activation>(options_.activations); }

  // A convolution, its normalisation if there is any, and its activation, as NAME, NAME_norm and
  // NAME_relu.
  void add_convolution(Chain& chain, const std::string& name, std::int64_t in, std::int64_t out,
                       std::int64_t side, std::int64_t stride,
                       FirstWeights first = FirstWeights::kHe);

 private:
  std::uint64_t next_seed();  // of a layer

  NetworkOptions options_;
  std::uint64_t num_layers_ = 0;
};

// Fake quantization to integers of 4 bits, in the forward pass alone: values are rounded and stay
// floats, and gradients pass unchanged (straight-through).

// Weights: -7 to 7, with a scale for each output channel (the first dimension): its largest
// magnitude is 7.
torch::Tensor fake_int4_weight(const torch::Tensor& weight);

// Activations: -7 to 7, or 0 to 15 if no value is negative, as behind a ReLU. One scale for all,
// with the least squared error of eight on a sample: at the largest magnitude, and down to a tenth
// of it, where larger values are clipped.
torch::Tensor fake_int4_input(const torch::Tensor& input);

}  // namespace slimgrad::trainer

#endif  // SLIMGRAD_TRAINER_PARTS_H_
