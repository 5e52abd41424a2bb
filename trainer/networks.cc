#include "trainer/networks.h"

#include <torch/nn/functional/padding.h>
#include <torch/nn/functional/pooling.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/normalization.h>

#include <slimgrad/error.h>

namespace slimgrad::trainer {
namespace {

// ---- chains of layers ---------------------------------------------------------------------------

torch::Tensor mean_of_pixels(const torch::Tensor& x) {
  return torch::adaptive_avg_pool2d(x, {1, 1}).flatten(1);
}
// Rounded up, so that an image of any size ends as one pixel.
torch::Tensor halve(const torch::Tensor& x) {
  return torch::max_pool2d(x, 2, 2, 0, 1, /*ceil_mode=*/true);
}
torch::Tensor flatten(const torch::Tensor& x) { return x.flatten(1); }

// Five convolutions, 0.2 M weights, 10 M multiply-adds for an image of 32 x 32.
PartPtr make_cnn(const SampleShape& data, PartMaker maker) {
  auto chain = std::make_shared<Chain>();
  const auto add = [&](const char* name, std::int64_t in, std::int64_t out, std::int64_t side,
                       std::int64_t stride) {
    maker.add_convolution(*chain, name, in, out, side, stride, FirstWeights::kTorch);
  };
  add("conv1", data.channels, 24, 5, 2);
  add("conv2", 24, 48, 3, 1);
  add("conv3", 48, 64, 3, 2);
  add("conv4", 64, 96, 3, 1);
  add("conv5", 96, 128, 3, 2);
  chain->then(mean_of_pixels).add("linear6", maker.linear(128, data.classes));
  return chain;
}

// Softmax regression on the pixels: what glyphs must defeat.
PartPtr make_linear(const SampleShape& data, PartMaker maker) {
  auto chain = std::make_shared<Chain>();
  chain->then(flatten).add("linear1", maker.linear(data.bytes(), data.classes));
  return chain;
}

// Two hidden layers of 512.
PartPtr make_mlp(const SampleShape& data, PartMaker maker) {
  constexpr std::int64_t kWidth = 512;
  auto chain = std::make_shared<Chain>();
  chain->then(flatten)
      .add("linear1", maker.linear(data.bytes(), kWidth))
      .add("activation1", maker.activation())
      .add("linear2", maker.linear(kWidth, kWidth))
      .add("activation2", maker.activation())
      .add("linear3", maker.linear(kWidth, data.classes));
  return chain;
}

// Simonyan and Zisserman 2015, configuration A, with one linear layer for small images.
PartPtr make_vgg11(const SampleShape& data, PartMaker maker) {
  constexpr int kHalve = 0;
  auto chain = std::make_shared<Chain>();
  std::int64_t channels = data.channels;
  int number = 0;
  for (const int out :
       {64, kHalve, 128, kHalve, 256, 256, kHalve, 512, 512, kHalve, 512, 512, kHalve}) {
    if (out == kHalve) {
      chain->then(halve);
      continue;
    }
    maker.add_convolution(*chain, "conv" + std::to_string(++number), channels, out, 3, 1);
    channels = out;
  }
  chain->then(mean_of_pixels).add("linear9", maker.linear(channels, data.classes));
  return chain;
}

// ---- residual networks for small images (He et al. 2016) ----------------------------------------

enum class Shortcut { kPadded, kProjected };

// Two convolutions beside a shortcut. Where there is no normalisation the second one begins at
// zero: the signal would otherwise grow with every block.
class Block : public Part {
 public:
  Block(PartMaker& maker, std::int64_t in, std::int64_t out, std::int64_t stride, Shortcut shortcut)
      : stride_(stride), padding_(out - in) {
    const bool norm = maker.batch_norm();
    maker.add_convolution(*branch_, "conv1", in, out, 3, stride);
    branch_->add("conv2", maker.convolution(out, out, 3, 1,
                                            norm ? FirstWeights::kHe : FirstWeights::kZero, !norm));
    if (norm) branch_->add("conv2_norm", maker.norm(out));
    register_module("branch", branch_);
    if (shortcut == Shortcut::kProjected && (stride != 1 || in != out)) {
      projection_ = std::make_shared<Chain>();
      projection_->add("conv", maker.convolution(in, out, 1, stride, FirstWeights::kHe, !norm));
      if (norm) projection_->add("norm", maker.norm(out));
      register_module("shortcut", projection_);
    }
    activation_ = maker.activation();
    register_module("activation", activation_);
  }

  torch::Tensor forward(torch::Tensor x) override {
    const torch::Tensor y = branch_->forward(x);
    return activation_->forward(y + (projection_ ? projection_->forward(x) : padded(x)));
  }

 private:
  // Every second pixel, and new channels that are zero.
  torch::Tensor padded(const torch::Tensor& x) const {
    if (stride_ == 1 && padding_ == 0) return x;
    const torch::Tensor few = x.slice(2, 0, x.size(2), stride_).slice(3, 0, x.size(3), stride_);
    return torch::constant_pad_nd(few, {0, 0, 0, 0, padding_ / 2, padding_ - padding_ / 2});
  }

  std::int64_t stride_, padding_;
  std::shared_ptr<Chain> branch_ = std::make_shared<Chain>(), projection_;
  PartPtr activation_;
};

PartPtr make_resnet(const SampleShape& data, PartMaker& maker, std::int64_t width, int stages,
                    int blocks, Shortcut shortcut) {
  auto chain = std::make_shared<Chain>();
  maker.add_convolution(*chain, "stem", data.channels, width, 3, 1);
  std::int64_t channels = width;
  for (int stage = 1; stage <= stages; ++stage)
    for (int block = 1; block <= blocks; ++block) {
      const std::int64_t out = width << (stage - 1);
      const std::int64_t stride = stage > 1 && block == 1 ? 2 : 1;
      chain->add("stage" + std::to_string(stage) + "_block" + std::to_string(block),
                 std::make_shared<Block>(maker, channels, out, stride, shortcut));
      channels = out;
    }
  chain->then(mean_of_pixels).add("linear", maker.linear(channels, data.classes));
  return chain;
}

// He et al. 2016 for small images: three stages of three blocks, 16 to 64 channels; shortcuts
// without weights.
PartPtr make_resnet20(const SampleShape& data, PartMaker maker) {
  return make_resnet(data, maker, 16, 3, 3, Shortcut::kPadded);
}

// He et al. 2016: four stages of two blocks, 64 to 512 channels, with a stem of 3 x 3 for small
// images.
PartPtr make_resnet18(const SampleShape& data, PartMaker maker) {
  return make_resnet(data, maker, 64, 4, 2, Shortcut::kProjected);
}

// ---- DenseNet-BC for small images (Huang et al. 2017) -------------------------------------------
//
// Every layer of a block sees what all before it made.

constexpr std::int64_t kGrowth = 12;
constexpr int kLayersABlock = 6,
              kDenseBlocks = 3;  // depth 40: two convolutions a layer, and four more

// Normalisation and activation come before a convolution here.
void add_before(Chain& chain, PartMaker& maker, const std::string& name, std::int64_t channels) {
  if (maker.batch_norm()) chain.add(name + "_norm", maker.norm(channels));
  chain.add(name + "_activation", maker.activation());
}

class DenseLayer : public Part {
 public:
  DenseLayer(PartMaker& maker, std::int64_t in) {
    const bool bias = !maker.batch_norm();
    add_before(*branch_, maker, "conv1", in);
    branch_->add("conv1", maker.convolution(in, 4 * kGrowth, 1, 1, FirstWeights::kHe, bias));
    add_before(*branch_, maker, "conv2", 4 * kGrowth);
    branch_->add("conv2", maker.convolution(4 * kGrowth, kGrowth, 3, 1, FirstWeights::kHe, bias));
    register_module("branch", branch_);
  }

  torch::Tensor forward(torch::Tensor x) override {
    return torch::cat({x, branch_->forward(x)}, 1);
  }

 private:
  std::shared_ptr<Chain> branch_ = std::make_shared<Chain>();
};

// Huang et al. 2017: DenseNet-BC of depth 40 that grows by 12 channels a layer.
PartPtr make_densenet(const SampleShape& data, PartMaker maker) {
  const bool bias = !maker.batch_norm();
  auto chain = std::make_shared<Chain>();
  std::int64_t channels = 2 * kGrowth;
  chain->add("stem", maker.convolution(data.channels, channels, 3, 1, FirstWeights::kHe, bias));
  for (int block = 1; block <= kDenseBlocks; ++block) {
    const std::string name = "block" + std::to_string(block);
    for (int layer = 1; layer <= kLayersABlock; ++layer) {
      chain->add(name + "_layer" + std::to_string(layer),
                 std::make_shared<DenseLayer>(maker, channels));
      channels += kGrowth;
    }
    add_before(*chain, maker, name + "_end", channels);
    if (block == kDenseBlocks) break;
    const std::int64_t half = channels / 2;
    chain->add(name + "_end", maker.convolution(channels, half, 1, 1, FirstWeights::kHe, bias));
    chain->then([](const torch::Tensor& x) { return torch::avg_pool2d(x, 2); });
    channels = half;
  }
  chain->then(mean_of_pixels).add("linear", maker.linear(channels, data.classes));
  return chain;
}

// ---- a transformer that predicts the next byte (Radford et al. 2019, smaller) -------------------

constexpr std::int64_t kWidth = 128, kHeads = 4;
constexpr int kBlocks = 3;

torch::nn::LayerNorm layer_norm() {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth}));
}

class TransformerBlock : public Part {
 public:
  explicit TransformerBlock(PartMaker& maker)
      : norm1_(register_module("norm1", layer_norm())),
        norm2_(register_module("norm2", layer_norm())),
        query_key_value_(
            register_module("qkv", maker.linear(kWidth, 3 * kWidth, FirstWeights::kSmall))),
        projection_(
            register_module("projection", maker.linear(kWidth, kWidth, FirstWeights::kSmall))),
        up_(register_module("mlp_up", maker.linear(kWidth, 4 * kWidth, FirstWeights::kSmall))),
        activation_(register_module("activation", maker.activation())),
        down_(register_module("mlp_down", maker.linear(4 * kWidth, kWidth, FirstWeights::kSmall))) {
  }

  torch::Tensor forward(torch::Tensor x) override {
    x = x + projection_->forward(attend(norm1_->forward(x)));
    const torch::Tensor hidden = activation_->forward(up_->forward(norm2_->forward(x)));
    return x + down_->forward(hidden);
  }

 private:
  torch::Tensor attend(const torch::Tensor& x) {
    const std::int64_t batch = x.size(0), length = x.size(1);
    const std::vector<torch::Tensor> parts = query_key_value_->forward(x)
                                                 .view({batch, length, 3, kHeads, kWidth / kHeads})
                                                 .permute({2, 0, 3, 1, 4})
                                                 .unbind(0);
    const torch::Tensor seen = torch::scaled_dot_product_attention(
        parts[0], parts[1], parts[2], {}, /*dropout_p=*/0, /*is_causal=*/true);
    return seen.transpose(1, 2).reshape({batch, length, kWidth});
  }

  torch::nn::LayerNorm norm1_, norm2_;
  PartPtr query_key_value_, projection_, up_, activation_, down_;
};

class Gpt : public Part {
 public:
  Gpt(const SampleShape& data, PartMaker& maker)
      : symbols_(register_module("symbols", torch::nn::Embedding(data.classes, kWidth))),
        places_(register_module("places", torch::nn::Embedding(kTextContext, kWidth))) {
    torch::nn::init::normal_(symbols_->weight, 0, 0.02);
    torch::nn::init::normal_(places_->weight, 0, 0.02);
    for (int block = 1; block <= kBlocks; ++block)
      blocks_.push_back(register_module("block" + std::to_string(block),
                                        std::make_shared<TransformerBlock>(maker)));
    norm_ = register_module("norm", layer_norm());
    head_ = register_module("head", maker.linear(kWidth, data.classes, FirstWeights::kSmall));
  }

  torch::Tensor forward(torch::Tensor bytes) override {
    const torch::Tensor places = torch::arange(bytes.size(1), torch::kLong);
    torch::Tensor x = symbols_->forward(bytes) + places_->forward(places);
    for (const PartPtr& block : blocks_) x = block->forward(x);
    return head_->forward(norm_->forward(x));
  }

 private:
  torch::nn::Embedding symbols_, places_;
  std::vector<PartPtr> blocks_;
  torch::nn::LayerNorm norm_{nullptr};
  PartPtr head_;
};

// Three blocks, width 128, four heads, on kTextContext bytes; 0.7 M weights.
PartPtr make_gpt(const SampleShape& data, PartMaker maker) {
  return std::make_shared<Gpt>(data, maker);
}

// ---- any of them --------------------------------------------------------------------------------

using Maker = PartPtr (*)(const SampleShape&, PartMaker);

Maker maker_of(std::string_view model) {
  if (model == "cnn") return make_cnn;
  if (model == "linear") return make_linear;
  if (model == "mlp") return make_mlp;
  if (model == "resnet20") return make_resnet20;
  if (model == "resnet18") return make_resnet18;
  if (model == "vgg11") return make_vgg11;
  if (model == "densenet") return make_densenet;
  if (model == "gpt") return make_gpt;
  throw InvalidArgument("--model: expected one of the networks that --help lists, got " +
                        std::string(model));
}

}  // namespace

std::vector<Layer*> layers_of(Part& network) {
  std::vector<Layer*> layers;
  for (const auto& module : network.modules(/*include_self=*/false))
    if (auto* layer = dynamic_cast<Layer*>(module.get())) layers.push_back(layer);
  return layers;
}

PartPtr make_network(std::string_view model, const SampleShape& data,
                     const NetworkOptions& options) {
  if ((model == "gpt") != data.is_text)
    throw InvalidArgument("--data: expected " + std::string(data.is_text ? "images" : "text") +
                          " for --model " + std::string(model));
  PartPtr network = maker_of(model)(data, PartMaker(options));
  const auto watch = std::make_shared<GradientWatch>();
  for (const auto& module : network->named_modules("", /*include_self=*/false))
    if (auto* layer = dynamic_cast<Layer*>(module.value().get())) {
      layer->name = module.key();
      layer->watch = watch;
    }
  const std::vector<Layer*> layers = layers_of(*network);
  for (std::size_t i = 1; i + 1 < layers.size(); ++i) layers[i]->fake_int4 = options.fake_int4;
  return network;
}

}  // namespace slimgrad::trainer
