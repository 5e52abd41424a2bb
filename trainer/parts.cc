#include "trainer/parts.h"

#include <torch/nn/init.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <cmath>
#include <utility>
#include <variant>

#include <slimgrad/activations.h>
#include <slimgrad/nn.h>
#include <slimgrad/seed.h>

namespace slimgrad::trainer {
namespace {

void set_first_weights(Layer& layer, FirstWeights first) {
  if (first == FirstWeights::kTorch) return;
  torch::NoGradGuard no_grad;
  if (first == FirstWeights::kHe)
    torch::nn::init::kaiming_normal_(layer.weight, 0, torch::kFanOut, torch::kReLU);
  else if (first == FirstWeights::kSmall)
    torch::nn::init::normal_(layer.weight, 0, 0.02);
  else
    layer.weight.zero_();
  if (layer.bias.defined()) layer.bias.zero_();
}

class Norm : public Part {
 public:
  explicit Norm(std::int64_t channels)
      : norm_(register_module("norm", torch::nn::BatchNorm2d(channels))) {}
  torch::Tensor forward(torch::Tensor x) override { return norm_->forward(x); }

 private:
  torch::nn::BatchNorm2d norm_;
};

TensorFunction torch_function(const std::string& name) {
  if (name == "gelu") return [](const torch::Tensor& x) { return torch::gelu(x); };
  if (name == "silu") return [](const torch::Tensor& x) { return torch::silu(x); };
  if (name == "tanh") return [](const torch::Tensor& x) { return torch::tanh(x); };
  return [](const torch::Tensor& x) { return torch::relu(x); };
}

GateOptions gate_options(const GradientChoice& choice, std::uint64_t seed) {
  GradientSettings of_product;
  of_product.method = choice.sparse_method;
  return {.settings = choice.gates.value_or(of_product),
          .seed = seed,
          .min_elements = choice.min_elements,
          .refresh_every = choice.refresh_every,
          .warmup = choice.warmup};
}

slimgrad::nn::SparseOptions sparse_options(const GradientChoice& choice, std::uint64_t seed) {
  return {.weight_sparsity = choice.sparse->weight,
          .input_sparsity = choice.sparse->input,
          .gate = gate_options(choice, seed),
          .always = choice.always_sparse};
}

// The layer shares what is the module's: parameters, and the state of its backward pass.
template <typename Holder>
void take(Layer& layer, const Holder& module) {
  layer.register_module("op", module.ptr());
  layer.weight = module->weight;
  layer.bias = module->bias;
  layer.apply = [op = module.ptr().get()](const torch::Tensor& x) { return op->forward(x); };
}

void set_apply_with(Layer& layer, const torch::nn::Conv2dOptions& options) {
  layer.apply_with = [&layer, options](const torch::Tensor& x, const torch::Tensor& weight) {
    const auto padding = std::get<torch::ExpandingArray<2>>(options.padding());
    if (!layer.sparse) return torch::conv2d(x, weight, layer.bias, options.stride(), padding);
    return sparse_conv2d(x, weight, layer.bias_if_any(), options.stride(), padding,
                         options.dilation(), options.groups(), *layer.sparse);
  };
}

void set_apply_with(Layer& layer, const torch::nn::LinearOptions&) {
  layer.apply_with = [&layer](const torch::Tensor& x, const torch::Tensor& weight) {
    return layer.sparse ? sparse_linear(x, weight, layer.bias_if_any(), *layer.sparse)
                        : torch::linear(x, weight, layer.bias);
  };
}

template <typename Plain, typename Sparse, typename Options>
std::shared_ptr<Layer> make_layer(const Options& options, const GradientChoice& gradients,
                                  std::uint64_t seed, FirstWeights first) {
  auto layer = std::make_shared<Layer>();
  if (gradients.sparse) {
    const Sparse module(options, sparse_options(gradients, seed));
    take(*layer, module);
    layer->sparse = std::make_shared<SparseLayerState>(module->state());
  } else {
    take(*layer, Plain(options));
  }
  if (gradients.gates)
    layer->gate = layer->register_module(
        "gate", std::make_shared<slimgrad::nn::GradientGateImpl>(gate_options(gradients, seed)));
  set_apply_with(*layer, options);
  set_first_weights(*layer, first);
  return layer;
}

torch::Tensor straight_through(const torch::Tensor& x, const torch::Tensor& rounded) {
  return x + (rounded - x).detach();
}

}  // namespace

Chain& Chain::add(std::string name, PartPtr part) {
  register_module(std::move(name), part);
  return then([part = part.get()](const torch::Tensor& x) { return part->forward(x); });
}

Chain& Chain::then(TensorFunction function) {
  steps_.push_back(std::move(function));
  return *this;
}

torch::Tensor Chain::forward(torch::Tensor x) {
  for (const TensorFunction& step : steps_) x = step(x);
  return x;
}

std::optional<torch::Tensor> Layer::bias_if_any() const {
  return bias.defined() ? std::optional<torch::Tensor>(bias) : std::nullopt;
}

torch::Tensor Layer::forward(torch::Tensor x) {
  torch::Tensor y = fake_int4 ? apply_with(fake_int4_input(x), fake_int4_weight(weight)) : apply(x);
  if (gate) y = gate->forward(y);
  if (watch && watch->on && y.requires_grad())
    y.register_hook([watch = watch, name = name](const torch::Tensor& gradient) {
      watch->see(name, gradient);
    });
  return y;
}

Activation::Activation(const ActivationChoice& choice) {
  const bool has_inverse = choice.function == "gelu" || choice.function == "silu";
  if (!choice.few_bits())
    function_ = torch_function(choice.function);
  else if (choice.exact && has_inverse)
    function_ = [name = choice.function](const torch::Tensor& x) {
      return invertible_activation(x, name);
    };
  else
    function_ = FewbitActivation({choice.function}, choice.bits > 0 ? choice.bits : 1);
}

torch::Tensor Activation::forward(torch::Tensor x) {
  elements = x.numel();
  return function_(x);
}

std::uint64_t PartMaker::next_seed() {
  return derive_seed(options_.seed, {"layer", ++num_layers_});
}

std::shared_ptr<Layer> PartMaker::convolution(std::int64_t in, std::int64_t out, std::int64_t side,
                                              std::int64_t stride, FirstWeights first, bool bias) {
  return make_layer<torch::nn::Conv2d, slimgrad::nn::Conv2d>(
      torch::nn::Conv2dOptions(in, out, side).stride(stride).padding(side / 2).bias(bias),
      options_.gradients, next_seed(), first);
}

std::shared_ptr<Layer> PartMaker::linear(std::int64_t in, std::int64_t out, FirstWeights first) {
  return make_layer<torch::nn::Linear, slimgrad::nn::Linear>(
      torch::nn::LinearOptions(in, out), options_.gradients, next_seed(), first);
}

PartPtr PartMaker::norm(std::int64_t channels) { return std::make_shared<Norm>(channels); }

void PartMaker::add_convolution(Chain& chain, const std::string& name, std::int64_t in,
                                std::int64_t out, std::int64_t side, std::int64_t stride,
                                FirstWeights first) {
  chain.add(name, convolution(in, out, side, stride, first, !batch_norm()));
  if (batch_norm()) chain.add(name + "_norm", norm(out));
  chain.add(name + "_" + options_.activations.function, activation());
}

torch::Tensor fake_int4_weight(const torch::Tensor& weight) {
  const torch::Tensor rows = weight.detach().reshape({weight.size(0), -1});
  const torch::Tensor scale = (rows.abs().amax(1, /*keepdim=*/true) / 7).clamp_min(1e-30);
  return straight_through(weight, (rows / scale).round().mul(scale).view_as(weight));
}

torch::Tensor fake_int4_input(const torch::Tensor& input) {
  const torch::Tensor x = input.detach();
  const double low = x.min().item<double>() < 0 ? -7 : 0, high = low < 0 ? 7 : 15;
  const double largest = x.abs().max().item<double>();
  if (!(largest > 0)) return input;
  const auto rounded = [&](const torch::Tensor& values, double scale) {
    return (values / scale).round_().clamp_(low, high).mul_(scale);
  };
  // An odd stride, so that a sample sees all channels.
  constexpr std::int64_t kSample = 1 << 14;
  const torch::Tensor flat = x.reshape(-1);
  const torch::Tensor sample = flat.slice(0, 0, flat.numel(), (flat.numel() / kSample) | 1);
  double best_scale = largest / high, least_error = INFINITY;
  for (const double share : {1.0, 0.8, 0.6, 0.45, 0.33, 0.25, 0.15, 0.1}) {
    const double scale = share * largest / high;
    const double error = (rounded(sample, scale) - sample).square_().sum().item<double>();
    if (error < least_error) {
      least_error = error;
      best_scale = scale;
    }
  }
  return straight_through(input, rounded(x, best_scale));
}

}  // namespace slimgrad::trainer
