// Residual networks for small images (He et al. 2016).
#include <torch/nn/functional/padding.h>

#include "trainer/networks.h"

namespace slimgrad::trainer {
namespace {

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
  chain->then([](const torch::Tensor& x) {
    return torch::adaptive_avg_pool2d(x, {1, 1}).flatten(1);
  });
  chain->add("linear", maker.linear(channels, data.classes));
  return chain;
}

}  // namespace

PartPtr make_resnet20(const SampleShape& data, PartMaker maker) {
  return make_resnet(data, maker, 16, 3, 3, Shortcut::kPadded);
}

PartPtr make_resnet18(const SampleShape& data, PartMaker maker) {
  return make_resnet(data, maker, 64, 4, 2, Shortcut::kProjected);
}

}  // namespace slimgrad::trainer
