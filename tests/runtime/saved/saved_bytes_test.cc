#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <slimgrad/saved_tensors.h>
#include <torch/nn.h>

namespace slimgrad {
namespace {

std::vector<std::string> names(const SavedBytes& bytes) {
  std::vector<std::string> names;
  for (const SavedBytes::Part& part : bytes.parts) names.push_back(part.name);
  return names;
}

TEST(SavedBytes, CountsEachStorageOnceForTheOperationThatSavedIt) {
  torch::manual_seed(1);
  torch::nn::Linear first(64, 128), second(128, 64);
  const at::Tensor x = at::randn({256, 64});
  std::vector<at::Tensor> parameters = first->parameters();
  for (const at::Tensor& parameter : second->parameters()) parameters.push_back(parameter);
  const auto forward = [&] { second(at::tanh(first(x))).square().sum(); };
  const SavedBytes bytes = saved_bytes(forward, parameters);
  // x; the result of tanh, which is the input of the second layer, too; what is squared.
  EXPECT_THAT(names(bytes), testing::ElementsAre("aten::addmm", "aten::tanh", "aten::square"));
  EXPECT_EQ(bytes.parts[0].plain, 256u * 64 * 4);
  EXPECT_EQ(bytes.parts[1].plain, 256u * 128 * 4);
  EXPECT_EQ(bytes.parts[2].plain, 256u * 64 * 4);
  EXPECT_EQ(bytes.total().saved, bytes.total().plain);
  EXPECT_TRUE(bytes.left.empty());
  // Without the parameters the weight of the second layer is one of them.
  EXPECT_EQ(saved_bytes(forward).total().plain, bytes.total().plain + 128 * 64 * 4);
}

TEST(SavedBytes, SetsWhatIsPackedBesideWhatTorchWouldSave) {
  const at::Tensor input = at::randn({64, 64}).requires_grad_();
  SavedTensors saved_tensors({.bits = 8}, 1);
  const SavedBytes bytes = saved_bytes([&] {
    const SavedTensorsGuard guard(saved_tensors);
    at::Tensor y;
    {
      RECORD_USER_SCOPE("block");
      y = (input * 2.0).sin().cos();
    }
    y* at::ones({64, 64});
  });
  EXPECT_THAT(names(bytes), testing::ElementsAre("block", "aten::mul"));
  EXPECT_EQ(bytes.parts[0].plain, 2u * 64 * 64 * 4);
  EXPECT_LT(bytes.parts[0].saved, bytes.parts[0].plain / 3);
  EXPECT_GT(bytes.parts[0].saved, bytes.parts[0].plain / 5);
  EXPECT_EQ(SavedTally::sum(saved_tensors.tally().packed).tensors, 3);
  // Ones without zeros are a mask of one value.
  EXPECT_EQ(bytes.parts[1].saved, 64u * 64 / 8 + 16);
}

TEST(SavedBytes, SaysWhatWasLeftAndCountsNothingAfterwards) {
  const at::Tensor input = at::randn({10, 10}).requires_grad_();
  SavedTensors saved_tensors({.bits = 8}, 1);
  const auto forward = [&] {
    const SavedTensorsGuard guard(saved_tensors);
    (input * 2.0).sin();
  };
  const SavedBytes bytes = saved_bytes(forward);
  EXPECT_THAT(bytes.left, testing::ElementsAre(testing::Pair("small", 400u)));
  forward();
  EXPECT_EQ(bytes.total().saved, 400u);
  EXPECT_THROW(saved_bytes([] { throw std::runtime_error("no"); }), std::runtime_error);
  EXPECT_EQ(saved_bytes(forward).total().saved, 400u);
}

}  // namespace
}  // namespace slimgrad
