#include "trainer/model.h"

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>

#include <memory>
#include <utility>

#include <slimgrad/nn.h>

#include "base/hash.h"
#include "trainer/glyphs.h"

namespace slimgrad::trainer {
namespace {

constexpr const char* kGateSuffix = "_gate";

class Builder {
 public:
  Builder(const GradientChoice& gradients, std::uint64_t seed)
      : gradients_(gradients), seed_(seed) {}

  void convolution(std::int64_t in, std::int64_t out, std::int64_t side, std::int64_t stride) {
    const std::string name = "conv" + std::to_string(++num_layers_);
    // The normalisation has a bias of its own.
    const auto options =
        torch::nn::Conv2dOptions(in, out, side).stride(stride).padding(side / 2).bias(false);
    if (gradients_.sparse)
      add(name, slimgrad::nn::Conv2d(options, sparse_options()));
    else
      add(name, torch::nn::Conv2d(options));
    gate(name);
    add(name + "_norm", torch::nn::BatchNorm2d(out));
    add(name + "_relu", torch::nn::ReLU());
  }

  void linear(std::int64_t in, std::int64_t out) {
    const std::string name = "linear" + std::to_string(++num_layers_);
    if (gradients_.sparse)
      add(name, slimgrad::nn::Linear(torch::nn::LinearOptions(in, out), sparse_options()));
    else
      add(name, torch::nn::Linear(in, out));
    gate(name);
  }

  void pool_to_one_pixel() { add("pool", torch::nn::AdaptiveAvgPool2d(1)); }
  void flatten() { add("flatten", torch::nn::Flatten()); }
  torch::nn::Sequential finish() { return network_; }

 private:
  template <typename Module>
  void add(std::string name, const Module& module) {
    network_->push_back(std::move(name), torch::nn::AnyModule(module));
  }

  void gate(const std::string& layer) {
    if (!gradients_.gates) return;
    const GateOptions options{.settings = *gradients_.gates, .seed = layer_seed()};
    add(layer + kGateSuffix, slimgrad::nn::GradientGate(options));
  }

  std::uint64_t layer_seed() const {
    return mix_bits(seed_ + static_cast<std::uint64_t>(num_layers_));
  }
  slimgrad::nn::SparseOptions sparse_options() const {
    return {.weight_sparsity = gradients_.sparse->weight,
            .input_sparsity = gradients_.sparse->input,
            .gate = {.settings = {}, .seed = layer_seed()}};
  }

  GradientChoice gradients_;
  std::uint64_t seed_;
  torch::nn::Sequential network_;
  int num_layers_ = 0;
};

}  // namespace

torch::nn::Sequential make_network(Architecture architecture, const GradientChoice& gradients,
                                   std::uint64_t seed) {
  Builder builder(gradients, seed);
  if (architecture == Architecture::kLinear) {
    builder.flatten();
    builder.linear(kImageBytes, kNumClasses);
  } else {
    builder.convolution(kNumChannels, 24, 5, 2);
    builder.convolution(24, 48, 3, 1);
    builder.convolution(48, 64, 3, 2);
    builder.convolution(64, 96, 3, 1);
    builder.convolution(96, 128, 3, 2);
    builder.pool_to_one_pixel();
    builder.flatten();
    builder.linear(128, kNumClasses);
  }
  return builder.finish();
}

std::vector<LayerReport> gate_reports(const torch::nn::Sequential& network) {
  std::vector<LayerReport> reports;
  for (const auto& child : network->named_children()) {
    const auto gate = std::dynamic_pointer_cast<slimgrad::nn::GradientGateImpl>(child.value());
    if (!gate) continue;
    std::string layer = child.key();
    layer.resize(layer.size() - std::string(kGateSuffix).size());
    reports.emplace_back(std::move(layer), gate->report());
  }
  return reports;
}

}  // namespace slimgrad::trainer
