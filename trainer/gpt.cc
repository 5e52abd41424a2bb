// A transformer that names the next byte (Radford et al. 2019, smaller).
#include <torch/nn/init.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/normalization.h>

#include "trainer/networks.h"

namespace slimgrad::trainer {
namespace {

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

}  // namespace

PartPtr make_gpt(const SampleShape& data, PartMaker maker) {
  return std::make_shared<Gpt>(data, maker);
}

}  // namespace slimgrad::trainer
