// torch::nn::Linear and torch::nn::Conv2d with a sparse backward pass (sparse_layers.h), for
// libtorch programs. All state is in buffers, so that torch::save keeps it.
#ifndef SLIMGRAD_NN_LAYERS_H_
#define SLIMGRAD_NN_LAYERS_H_

#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <optional>

#include <slimgrad/sparse_layers.h>

namespace slimgrad::nn {

// Sparsities of the two products; 0 leaves one dense and exact. `gate` has what else a gate has:
// method, sample, warm-up, seed.
struct SparseOptions {
  double weight_sparsity = 0.9;
  double input_sparsity = 0;
  GateOptions gate;
  bool always = false;  // sparse even where dense is faster
};

inline at::Tensor new_product_plan(const SparseOptions& options, bool for_weight) {
  GateOptions gate = options.gate;
  gate.settings.prune = PruneKind::kStochastic;
  gate.settings.sparsity = for_weight ? options.weight_sparsity : options.input_sparsity;
  if (!for_weight) gate.seed = input_product_seed(gate.seed);
  return new_gate_plan(gate);
}

// The state as buffers of `module`.
inline SparseLayerState register_sparse_state(torch::nn::Module& module,
                                              const SparseOptions& options) {
  return {.weight_plan = module.register_buffer("weight_plan", new_product_plan(options, true)),
          .weight_stats = module.register_buffer("weight_stats", new_gate_stats()),
          .input_plan = module.register_buffer("input_plan", new_product_plan(options, false)),
          .input_stats = module.register_buffer("input_stats", new_gate_stats()),
          .choice = module.register_buffer("choice", new_sparse_choice(options.always))};
}

class LinearImpl : public torch::nn::LinearImpl {
 public:
  LinearImpl(const torch::nn::LinearOptions& linear, const SparseOptions& sparse)
      : torch::nn::LinearImpl(linear), state(register_sparse_state(*this, sparse)) {}

  at::Tensor forward(const at::Tensor& x) {
    const auto b = bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt;
    return sparse_linear(x, weight, b, state);
  }

  SparseLayerState state;
};
TORCH_MODULE(Linear);

// Zero padding only: throws c10::Error for other modes and for padding by name.
class Conv2dImpl : public torch::nn::Conv2dImpl {
 public:
  Conv2dImpl(const torch::nn::Conv2dOptions& conv, const SparseOptions& sparse)
      : torch::nn::Conv2dImpl(conv), state(register_sparse_state(*this, sparse)) {
    TORCH_CHECK(std::holds_alternative<torch::enumtype::kZeros>(options.padding_mode()) &&
                    std::holds_alternative<torch::ExpandingArray<2>>(options.padding()),
                "[Conv2d] expected zero padding by numbers");
  }

  at::Tensor forward(const at::Tensor& x) {
    const auto b = bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt;
    const auto padding = std::get<torch::ExpandingArray<2>>(options.padding());
    return sparse_conv2d(x, weight, b, options.stride(), padding, options.dilation(),
                         options.groups(), state);
  }

  SparseLayerState state;
};
TORCH_MODULE(Conv2d);

}  // namespace slimgrad::nn

#endif  // SLIMGRAD_NN_LAYERS_H_
