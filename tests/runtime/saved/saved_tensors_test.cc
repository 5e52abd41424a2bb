#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <slimgrad/error.h>
#include <slimgrad/saved_tensors.h>
#include <slimgrad/seed.h>
#include <torch/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/nn.h>

#include <optional>
#include <set>
#include <string_view>
#include <thread>

namespace slimgrad {
namespace {

using testing::HasSubstr;

// Images to ten logarithms of probabilities: convolution, norm, ReLU, pooling, dropout.
torch::nn::Sequential small_network() {
  torch::manual_seed(1);
  return torch::nn::Sequential(
      torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 16, 3).padding(1)), torch::nn::BatchNorm2d(16),
      torch::nn::ReLU(), torch::nn::MaxPool2d(2), torch::nn::Dropout(0.5), torch::nn::Flatten(),
      torch::nn::Linear(16 * 8 * 8, 1000), torch::nn::LogSoftmax(1));
}

std::vector<at::Tensor> gradients(std::optional<SavedOptions> options, SavedTally* tally) {
  torch::nn::Sequential network = small_network();
  torch::manual_seed(2);  // of the dropout
  const at::Tensor x = at::randn({8, 3, 16, 16});
  at::Tensor loss;
  if (options) {
    SavedTensors saved_tensors(*options, 7);
    const SavedTensorsGuard guard(saved_tensors);
    loss = network->forward(x).square().mean();
    *tally = saved_tensors.tally();
  } else {
    loss = network->forward(x).square().mean();
  }
  loss.backward();  // The saved_tensors is gone by now.
  std::vector<at::Tensor> found;
  for (const at::Tensor& parameter : network->parameters()) found.push_back(parameter.grad());
  return found;
}

TEST(SavedTensors, ExactGivesTheGradientsOfTorchInFewerBytes) {
  const std::vector<at::Tensor> plain = gradients(std::nullopt, nullptr);
  SavedTally tally;
  const std::vector<at::Tensor> exact = gradients(SavedOptions{.bits = 0}, &tally);
  for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(at::equal(plain[i], exact[i])) << i;
  const SavedTally::Count total = tally.total();
  EXPECT_LT(total.bytes, total.plain_bytes * 3 / 4);  // zeros, indices and the mask
}

TEST(SavedTensors, FewBitsComeNearTheGradients) {
  const std::vector<at::Tensor> plain = gradients(std::nullopt, nullptr);
  double error_before = 0;
  for (const int bits : {8, 4, 2}) {
    SavedTally tally;
    const std::vector<at::Tensor> packed = gradients(SavedOptions{.bits = bits}, &tally);
    const at::Tensor difference = packed[0] - plain[0];
    const double error = (difference.norm() / plain[0].norm()).item<double>();
    EXPECT_LT(error, 4.0 / ((1 << bits) - 1));
    EXPECT_GT(error, error_before);
    EXPECT_LT(tally.total().bytes, tally.total().plain_bytes / (bits == 8 ? 3 : 4));
    error_before = error;
  }
}

at::Tensor state(std::int64_t seed, std::int64_t number) { return torch::tensor({seed, number}); }

std::int64_t num_rounded(const SavedTensors& saved_tensors) {
  return saved_tensors.state()[1].item<std::int64_t>();
}

// The gradient of a weight is that which the packed input gives, to the bit: what is packed, with
// which draws, is what docs/saved.md says.
TEST(SavedTensors, DrawsAreThoseOfTheSeedAndTheNumber) {
  const at::Tensor w = at::randn({64, 64}).requires_grad_();
  const at::Tensor input = at::randn({128, 64}).requires_grad_();
  SavedTensors saved_tensors({.bits = 4}, 11, 4096, 3);
  saved_tensors.load_state(state(11, 5));
  at::Tensor x, y;
  {
    const SavedTensorsGuard guard(saved_tensors);
    x = input * 1.0;
    y = x.mm(w);
  }
  y.sum().backward();
  const at::Tensor unpacked = SavedTensor(x, {.bits = 4}, derive_seed(11, {3}), 5).unpack();
  EXPECT_TRUE(at::equal(w.grad(), unpacked.t().mm(at::ones({128, 64}))));
  EXPECT_TRUE(at::equal(saved_tensors.state(), state(11, 6)));
}

TEST(SavedTensors, PacksAPieceOfMemoryOnce) {
  const at::Tensor input = at::randn({16, 64, 64}).requires_grad_();
  SavedTensors saved_tensors({.bits = 8}, 1);
  at::Tensor loss;
  {
    const SavedTensorsGuard guard(saved_tensors);
    const at::Tensor x = input * 2.0;
    loss = (x * x).sum() + x.view({-1, 64}).square().sum() + x.exp().log().mean();
  }
  loss.backward();
  const std::size_t piece = 16 * 64 * 64 * 4;
  const SavedTally tally = saved_tensors.tally();
  EXPECT_EQ(tally.total().plain_bytes, 2 * piece);  // x, and its exponential
  EXPECT_EQ(tally.packed.at("8 bits").tensors, 2);
  EXPECT_TRUE(tally.left.empty());
  EXPECT_GT(tally.packing_seconds, 0);
  EXPECT_GT(tally.unpacking_seconds, 0);
  EXPECT_EQ(num_rounded(saved_tensors), 2);
}

TEST(SavedTensors, TakesNoTensorForAnotherOneInTheSamePlace) {
  const at::Tensor input = at::ones({64, 64}).requires_grad_();
  SavedTensors saved_tensors({.bits = 8}, 1);
  const SavedTensorsGuard guard(saved_tensors);
  for (int i = 1; i <= 50; ++i) {
    const at::Tensor x = input * static_cast<double>(i);
    const at::Tensor gradient = torch::autograd::grad({(x * x).sum()}, {input})[0];
    EXPECT_NEAR(gradient[3][4].item<double>(), 2.0 * i * i, 0.02 * i * i) << i;
  }
}

TEST(SavedTensors, LeavesNothingBehind) {
  const at::Tensor input = at::randn({64, 64}).requires_grad_();
  SavedTensors saved_tensors({.bits = 8}, 1);
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> storages;
  {
    const SavedTensorsGuard guard(saved_tensors);
    const at::Tensor x = input.tanh();  // saved by its own node
    const at::Tensor small = at::randn({10, 10}).requires_grad_().tanh();
    const at::Tensor y = (x.sum() * small.sum()).exp();
    for (const at::Tensor& tensor : {x, small, y})
      storages.push_back(tensor.storage().getWeakStorageImpl());
  }
  for (const auto& storage : storages) EXPECT_TRUE(storage.expired());
}

TEST(SavedTensors, ActsUnderItsGuardInItsThreadAlone) {
  const at::Tensor input = at::randn({64, 64}).requires_grad_();
  SavedTensors outer({.bits = 8}, 1), inner({.bits = 4}, 1);
  const SavedTensorsGuard guard(outer);
  (input * 1.0).square();
  EXPECT_EQ(num_rounded(outer), 1);
  {
    const SavedTensorsGuard nested(inner);
    (input * 1.0).square();
  }
  std::thread([&] { (input * 1.0).square(); }).join();
  EXPECT_EQ(num_rounded(inner), 1);
  EXPECT_EQ(num_rounded(outer), 1);
  (input * 1.0).square();
  EXPECT_EQ(num_rounded(outer), 2);
  {
    const SavedTensorsGuard nested(inner), within(outer);  // inside itself: one pass
    (input * 1.0).square();
  }
  EXPECT_EQ(SavedTally::sum(outer.tally().packed).tensors, 3);
  EXPECT_EQ(SavedTally::sum(inner.tally().packed).tensors, 0);
}

TEST(SavedTensors, GraphsInSeveralThreadsDrawFromOneState) {
  constexpr int kDraws = 20000;
  const SavedTensors saved_tensors({.bits = 4}, 1);
  const auto begin = c10::Dispatcher::singleton()
                         .findSchemaOrThrow("slimgrad::begin_saved_", "")
                         .typed<at::Tensor(const at::Tensor&, std::int64_t, std::string_view)>();
  std::vector<std::int64_t> seeds(2 * kDraws);
  const auto draw_from = [&](int first) {
    for (int i = first; i < first + kDraws; ++i)
      seeds[i] = begin.call(saved_tensors.draws(), 0, "").item<std::int64_t>();
  };
  std::thread other(draw_from, kDraws);
  draw_from(0);
  other.join();
  EXPECT_EQ(saved_tensors.state()[1].item<std::int64_t>(), 2 * kDraws);
  EXPECT_EQ(std::set(seeds.begin(), seeds.end()).size(), seeds.size());
}

template <typename Action>
std::string message_of(const Action& action) {
  try {
    action();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing thrown";
}

TEST(SavedTensors, RefusesWhatWouldBeWrong) {
  const at::Tensor input = at::randn({64, 64}).requires_grad_();
  const auto cube = [&](int bits) {
    SavedTensors saved_tensors({.bits = bits}, 1);
    const SavedTensorsGuard guard(saved_tensors);
    const at::Tensor x = input * 1.0;
    return std::pair(x, (x * x * x).sum());
  };
  EXPECT_THAT(message_of([&] {
                const auto [x, loss] = cube(8);
                x.mul_(2);
                loss.backward();
              }),
              HasSubstr("modified by an inplace operation"));
  const auto second = [&](int bits) {
    torch::autograd::grad({cube(bits).second}, {input}, {}, true, true);
  };
  EXPECT_THAT(message_of([&] { second(8); }), HasSubstr("without create_graph"));
  EXPECT_EQ(message_of([&] { second(0); }), "nothing thrown");
  const auto of_logarithm = [&] {  // kept as bfloat16
    SavedTensors saved_tensors({.bits = 8}, 1);
    at::Tensor loss;
    {
      const SavedTensorsGuard guard(saved_tensors);
      loss = at::log_softmax(input * 1.0, 1).sum();
    }
    torch::autograd::grad({loss}, {input}, {}, true, true);
  };
  EXPECT_THAT(message_of(of_logarithm), HasSubstr("without create_graph"));
  EXPECT_THAT([] { SavedTensors({.bits = 3}, 1); },
              testing::ThrowsMessage<InvalidArgument>(HasSubstr("[SavedTensors] expected bits")));
  EXPECT_THROW(SavedTensors({.bits = -4}, 1), InvalidArgument);
  EXPECT_THROW(SavedTensors({.bits = 0, .group = 64}, 1), InvalidArgument);
  EXPECT_THROW(SavedTensors({.bits = 0, .is_stochastic = false}, 1), InvalidArgument);
  SavedTensors saved_tensors({.bits = 4}, 1);
  EXPECT_THROW(saved_tensors.load_state(state(1, std::int64_t{1} << 53)), InvalidArgument);
  EXPECT_THROW(saved_tensors.load_state(state(1, -1)), InvalidArgument);
  EXPECT_THROW(saved_tensors.load_state(at::zeros({2})), InvalidArgument);
  EXPECT_TRUE(at::equal(saved_tensors.state(), state(1, 0)));
  EXPECT_THROW(SavedTensors({.bits = 8}, 1, -1), InvalidArgument);
}

// x.detach() has the memory of x. No gradient goes through it, so it is left alone.
TEST(SavedTensors, LeavesWhatIsDetachedExactBesideWhatIsNot) {
  const at::Tensor input = at::randn({64, 64}).requires_grad_();
  const auto gradient = [&](const at::Tensor& loss) {
    return torch::autograd::grad({loss}, {input})[0];
  };
  const at::Tensor plain = input * 1.0;
  const at::Tensor want = gradient((plain * plain.detach()).sum());
  SavedTensors saved_tensors({.bits = 2}, 1, 0);
  at::Tensor rounded, exact;
  {
    const SavedTensorsGuard guard(saved_tensors);
    const at::Tensor x = input * 1.0;
    rounded = x.sin().sum();
    exact = (x * x.detach()).sum();
  }
  EXPECT_TRUE(at::equal(gradient(exact), want));
  EXPECT_FALSE(at::equal(gradient(rounded), at::cos(input)));
}

class AnothersEngine final : public torch::autograd::Engine {};

TEST(SavedTensors, RefusesToReplaceAnEngineThatIsNotTorchs) {
  using torch::autograd::set_default_engine_stub;
  set_default_engine_stub([]() -> torch::autograd::Engine& {
    static AnothersEngine engine;
    return engine;
  });
  SavedTensors saved_tensors({.bits = 8}, 1);
  EXPECT_THAT(message_of([&] { const SavedTensorsGuard guard(saved_tensors); }),
              HasSubstr("slimgrad.saved_tensors()"));
  set_default_engine_stub(&torch::autograd::Engine::get_base_engine);
  EXPECT_EQ(message_of([&] { const SavedTensorsGuard guard(saved_tensors); }), "nothing thrown");
}

TEST(SavedTensors, LeavesSparseTensorsAndIntegersAlone) {
  const at::Tensor values = at::randn({64}).requires_grad_();
  const at::Tensor dense = at::randn({100, 64}).requires_grad_();
  SavedTensors saved_tensors({.bits = 8}, 1, 0);
  at::Tensor loss;
  {
    const SavedTensorsGuard guard(saved_tensors);
    const at::Tensor sparse =
        at::sparse_coo_tensor(at::arange(64).expand({2, 64}), values, {100, 100});
    loss = at::_sparse_mm(sparse, dense).sum();
  }
  loss.backward();
  EXPECT_TRUE(values.grad().defined());
}

}  // namespace
}  // namespace slimgrad
