// DenseNet-BC for small images (Huang et al. 2017): every layer of a block sees what all before it
// made.
#include "trainer/networks.h"

namespace slimgrad::trainer {
namespace {

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

}  // namespace

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
  chain->then([](const torch::Tensor& x) {
    return torch::adaptive_avg_pool2d(x, {1, 1}).flatten(1);
  });
  chain->add("linear", maker.linear(channels, data.classes));
  return chain;
}

}  // namespace slimgrad::trainer
