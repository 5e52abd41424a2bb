// torch::nn::Linear and torch::nn::Conv2d with a sparse backward pass (sparse_layers.h), for
// libtorch programs. They have the parameters of torch's and no buffers: archives of either load
// into the other. nn_state.h saves their state.
#ifndef SLIMGRAD_NN_LAYERS_H_
#define SLIMGRAD_NN_LAYERS_H_

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <optional>
#include <string>

#include <slimgrad/error.h>
#include <slimgrad/nn_state.h>
#include <slimgrad/seed.h>
#include <slimgrad/sparse_layers.h>

namespace slimgrad::nn {

// Sparsities of the two products; 0 leaves one dense and exact. `gate` has what else a gate has:
// method, sample, warm-up, seed; no sparsity and no bits, and no pruning but the stochastic one.
struct SparseOptions {
  double weight_sparsity = 0.9;
  double input_sparsity = 0;
  GateOptions gate;
  bool always = false;  // sparse even where dense is faster
  // Which of the seed's random numbers are drawn: the rank, in a distributed job.
  std::int64_t stream = 0;
};

inline at::Tensor new_product_plan(const SparseOptions& options, bool for_weight) {
  GateOptions gate = options.gate;
  const GradientSettings& settings = gate.settings;
  const auto refuse = [](const std::string& text) {
    throw InvalidArgument("[SparseOptions] expected " + text);
  };
  if (settings.sparsity != 0)
    refuse("weight_sparsity and input_sparsity, got gate.settings.sparsity");
  if (settings.prune != PruneKind::kNone && settings.prune != PruneKind::kStochastic)
    refuse("stochastic pruning, got " + std::string(prune_kind_name(settings.prune)));
  if (settings.bits != 0) refuse("0 bits, got " + std::to_string(settings.bits));
  gate.settings.prune = PruneKind::kStochastic;
  gate.settings.sparsity = for_weight ? options.weight_sparsity : options.input_sparsity;
  if (gate.seed) gate.seed = derive_seed(*gate.seed, {for_weight ? "weight" : "input"});
  return new_gate_plan(gate, "SparseOptions");
}

// A layer's state, as a child of it that torch::save leaves out. A child, because a network that is
// cloned assigns to its layers what torch::nn::LinearImpl has, and nothing of ours: children are.
class SparseStateImpl : public torch::nn::Cloneable<SparseStateImpl>, public StateOwner {
 public:
  explicit SparseStateImpl(const SparseOptions& options)
      : tensors{.weight_plan = new_product_plan(options, true),
                .weight_stats = new_gate_stats(),
                .input_plan = new_product_plan(options, false),
                .input_stats = new_gate_stats(),
                .choice = new_sparse_choice(options.always)},
        stream(options.stream) {}

  void reset() override {
    for (at::Tensor* tensor : {&tensors.weight_plan, &tensors.weight_stats, &tensors.input_plan,
                               &tensors.input_stats, &tensors.choice})
      *tensor = tensor->clone();
  }
  bool is_serializable() const override { return false; }
  Tensors state_tensors() const override {
    return {{{"weight", tensors.weight_plan, tensors.weight_stats},
             {"input", tensors.input_plan, tensors.input_stats}},
            tensors.choice};
  }

  SparseLayerState tensors;
  std::int64_t stream;
};

// What the two layers share: the state, and a clone() that copies it with the parameters, as that
// of `Base` does not know of it.
template <typename Derived, typename Base>
class SparseLayer : public Base {
 public:
  template <typename Options>
  SparseLayer(const Options& options, const SparseOptions& sparse) : Base(options) {
    this->register_module(kStateName, std::make_shared<SparseStateImpl>(sparse));
  }

  // Handles to the tensors that backward writes.
  SparseLayerState state() const { return owner()->tensors; }
  std::int64_t stream() const { return owner()->stream; }

  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<at::Device>& device = std::nullopt) const override {
    const torch::NoGradGuard no_gradient;
    const auto copy = std::make_shared<Derived>(static_cast<const Derived&>(*this));
    SparseLayer& layer = *copy;
    for (auto& parameter : layer.parameters_) {
      at::Tensor& tensor = parameter.value();
      if (!tensor.defined()) continue;  // no bias
      const auto options = tensor.options().device(device.value_or(tensor.device()));
      const bool has_gradient = tensor.requires_grad();
      tensor = tensor.detach().to(options, /*non_blocking=*/false, /*copy=*/true);
      tensor.set_requires_grad(has_gradient);
    }
    layer.weight = layer.parameters_["weight"];
    layer.bias = layer.parameters_["bias"];
    layer.replace_module(kStateName, std::dynamic_pointer_cast<SparseStateImpl>(owner()->clone()));
    return copy;
  }

 protected:
  std::optional<at::Tensor> bias_if_any() const {
    return this->bias.defined() ? std::optional<at::Tensor>(this->bias) : std::nullopt;
  }

 private:
  std::shared_ptr<SparseStateImpl> owner() const {
    for (const auto& child : this->children())
      if (auto state = std::dynamic_pointer_cast<SparseStateImpl>(child)) return state;
    TORCH_CHECK(false, "[", this->name(), "] expected the child ", kStateName, ", got none");
  }
};

class LinearImpl : public SparseLayer<LinearImpl, torch::nn::LinearImpl> {
 public:
  LinearImpl(const torch::nn::LinearOptions& linear, const SparseOptions& sparse)
      : SparseLayer(linear, sparse) {}

  at::Tensor forward(const at::Tensor& x) {
    return sparse_linear(x, weight, bias_if_any(), state(), stream());
  }
};
TORCH_MODULE(Linear);

// Zero padding only: throws InvalidArgument for other modes and for padding by name.
class Conv2dImpl : public SparseLayer<Conv2dImpl, torch::nn::Conv2dImpl> {
 public:
  Conv2dImpl(const torch::nn::Conv2dOptions& conv, const SparseOptions& sparse)
      : SparseLayer(conv, sparse) {
    if (!std::holds_alternative<torch::enumtype::kZeros>(options.padding_mode()) ||
        !std::holds_alternative<torch::ExpandingArray<2>>(options.padding()))
      throw InvalidArgument("[Conv2d] expected zero padding by numbers, got another one");
  }

  at::Tensor forward(const at::Tensor& x) {
    const auto padding = std::get<torch::ExpandingArray<2>>(options.padding());
    return sparse_conv2d(x, weight, bias_if_any(), options.stride(), padding, options.dilation(),
                         options.groups(), state(), stream());
  }
};
TORCH_MODULE(Conv2d);

}  // namespace slimgrad::nn

#endif  // SLIMGRAD_NN_LAYERS_H_
