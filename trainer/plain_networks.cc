// Networks that are a chain of layers and nothing else.
#include <torch/nn/functional/pooling.h>

#include "trainer/networks.h"

namespace slimgrad::trainer {
namespace {

torch::Tensor mean_of_pixels(const torch::Tensor& x) {
  return torch::adaptive_avg_pool2d(x, {1, 1}).flatten(1);
}
// Rounded up, so that an image of any size ends as one pixel.
torch::Tensor halve(const torch::Tensor& x) {
  return torch::max_pool2d(x, 2, 2, 0, 1, /*ceil_mode=*/true);
}
torch::Tensor flatten(const torch::Tensor& x) { return x.flatten(1); }

}  // namespace

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

PartPtr make_linear(const SampleShape& data, PartMaker maker) {
  auto chain = std::make_shared<Chain>();
  chain->then(flatten).add("linear1", maker.linear(data.bytes(), data.classes));
  return chain;
}

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

}  // namespace slimgrad::trainer
