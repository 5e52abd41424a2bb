// compress() for networks of torch::nn. tests/python/compress/test_compress_cpp.py compares the
// gradients with those of Python.
#include <slimgrad/compress.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/autocast_mode.h>
#include <c10/util/Exception.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>
#include <torch/nn/modules/transformerlayer.h>

#include <string>
#include <utility>
#include <vector>

#include <slimgrad/error.h>

namespace slimgrad {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;
using testing::ThrowsMessage;
using testing::UnorderedElementsAre;

CompressOptions pruning(double sparsity = 0.8) {
  CompressOptions options;
  options.gate.settings.prune = PruneKind::kStochastic;
  options.gate.settings.sparsity = sparsity;
  options.gate.min_elements = 1;
  options.gate.seed = 5;
  return options;
}

struct Network : torch::nn::Module {
  Network() {
    torch::manual_seed(1);
    register_module("first", first = torch::nn::Linear(32, 64));
    register_module("second", second = torch::nn::Linear(64, 16));
  }
  at::Tensor loss(const at::Tensor& x) { return second(torch::relu(first(x))).square().sum(); }

  torch::nn::Linear first{nullptr}, second{nullptr};
};

at::Tensor input() { return torch::randn({4, 8, 32}); }

std::vector<std::int64_t> calls(const Compression& compression) {
  std::vector<std::int64_t> calls;
  for (const NamedReport& report : compression.reports()) calls.push_back(report.gate.calls);
  return calls;
}

// What torch warns of while it lives.
class Warnings : public c10::WarningHandler {
 public:
  Warnings() : guard_(this) {}
  void process(const c10::Warning& warning) override { texts.push_back(warning.msg()); }
  std::vector<std::string> texts;

 private:
  c10::WarningUtils::WarningHandlerGuard guard_;
};

TEST(Compress, GatesBothShapesOfALinearLayerOnce) {
  Network network;
  Compression compression = compress(network, pruning());
  EXPECT_THAT(compression.gates().names(), ElementsAre("first", "second"));
  for (const at::Tensor& x : {input(), torch::randn({64, 32}), torch::randn({32})}) {
    network.zero_grad();
    const auto before = calls(compression);
    compression.backward(network.loss(x));
    for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(calls(compression)[i], before[i] + 1);
  }
  EXPECT_NEAR(compression.reports()[0].gate.sparsity_wanted, 0.8, 1e-9);
}

// The gradient of the output is that of a bias of one row: so many zeros, also of the bias.
TEST(Compress, CompressesTheGradientOfTheBiasToo) {
  torch::manual_seed(3);
  torch::nn::Linear layer(32, 4096);
  Compression compression = compress(*layer, pruning());
  EXPECT_THAT(compression.gates().names(), ElementsAre(""));
  const at::Tensor y = layer(torch::randn({1, 1, 32}));
  compression.backward(y, torch::randn({1, 1, 4096}));
  EXPECT_NEAR(layer->bias.grad().eq(0).to(torch::kDouble).mean().item<double>(), 0.8, 0.03);
  EXPECT_THAT(compression.summary(), HasSubstr("(model)"));
}

TEST(Compress, GatesAGraphThatIsWalkedTwiceOnce) {
  Network network;
  Compression compression = compress(network, pruning());
  const at::Tensor hidden = network.first(input());
  const at::Tensor one = network.second(hidden).square().sum(), other = hidden.sum();
  compression.place_gates({one, other});
  compression.backward(one, {}, /*retain_graph=*/true);
  compression.backward(one + other);
  EXPECT_THAT(calls(compression), ElementsAre(2, 2));
}

TEST(Compress, FindsLayersUnderAutocast) {
  Network network;
  Compression compression = compress(network, pruning());
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const at::Tensor loss = network.loss(input());
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  compression.backward(loss);
  EXPECT_THAT(calls(compression), ElementsAre(1, 1));
}

TEST(Compress, SaysWhatItLeaves) {
  struct Mixed : torch::nn::Module {
    Mixed() {
      register_module("table", torch::nn::Embedding(10, 32));
      register_module("memory", torch::nn::LSTM(32, 32));
      register_module("kept", torch::nn::Linear(32, 32));
      register_module("alias", kept = torch::nn::Linear(32, 32));
      register_module("again", kept);  // has its first name
      register_module("frozen", frozen);
      register_module("sparse", nn::Linear(torch::nn::LinearOptions(32, 32), SparseOptions()));
      frozen->weight.set_requires_grad(false);
    }
    using SparseOptions = slimgrad::nn::SparseOptions;
    torch::nn::Linear kept{nullptr}, frozen{32, 32};
  };
  Mixed network;
  CompressOptions options = pruning();
  options.exclude = {"kept"};
  const Compression compression = compress(network, options);
  EXPECT_THAT(compression.left(),
              UnorderedElementsAre(Pair("table", HasSubstr("rows of the table")),
                                   Pair("memory", HasSubstr("inside one call of torch")),
                                   Pair("kept", "excluded"),
                                   Pair("frozen", HasSubstr("its weight is frozen")),
                                   Pair("sparse", HasSubstr("compressed already"))));
  EXPECT_THAT(compression.reports(), ElementsAre(testing::Field(&NamedReport::name, "alias")));
  EXPECT_THAT(compression.summary(), HasSubstr("kept: no gate: excluded"));
}

TEST(Compress, OfTwoLayersWithOneWeightTheFirstHasTheGate) {
  torch::nn::Sequential both(torch::nn::Linear(32, 32), torch::nn::Linear(32, 32));
  auto& layers = *both;
  layers[1]->as<torch::nn::Linear>()->weight = layers[0]->as<torch::nn::Linear>()->weight;
  Compression compression = compress(layers, pruning());
  EXPECT_THAT(compression.left(), ElementsAre(Pair("1", HasSubstr("has the weight of 0"))));
  compression.backward(layers.forward(input()).sum());
  EXPECT_THAT(calls(compression), ElementsAre(2));
}

// Self-attention, in the modules of torch that are made of others.
TEST(Compress, GatesATransformerOfTorch) {
  torch::nn::TransformerEncoderLayer layer(torch::nn::TransformerEncoderLayerOptions(32, 4));
  Compression compression = compress(*layer, pruning());
  EXPECT_THAT(compression.gates().names(), ElementsAre("self_attn.q", "self_attn.k", "self_attn.v",
                                                       "self_attn.out_proj", "linear1", "linear2"));
  EXPECT_THAT(compression.left(), IsEmpty());
  compression.backward(layer(input()).square().sum());
  EXPECT_THAT(calls(compression), ElementsAre(1, 1, 1, 1, 1, 1));
}

TEST(Compress, CompressesALayerOnce) {
  Network network;
  CompressOptions options = pruning();
  options.include = {"first"};
  Compression one = compress(network, options);
  EXPECT_THAT(one.left(), ElementsAre(Pair("second", "not included")));
  Compression rest = compress(network, pruning());
  EXPECT_THAT(rest.left(), ElementsAre(Pair("first", "compressed already")));
  const at::Tensor loss = network.loss(input());
  one.place_gates(loss);
  rest.backward(loss);
  EXPECT_THAT(calls(one), ElementsAre(1));
  EXPECT_THAT(calls(rest), ElementsAre(1));
  EXPECT_THAT([&] { compress(network, pruning()); },
              ThrowsMessage<InvalidArgument>(HasSubstr("first: compressed already")));
  one.remove();
  EXPECT_THAT(compress(network, pruning()).left(),
              ElementsAre(Pair("second", HasSubstr("already"))));
}

TEST(Compress, ContinuesFromAState) {
  const at::Tensor x = input(), y = input();
  const auto gradient = [](Network& network) { return network.first->weight.grad().clone(); };
  Network network;
  Compression compression = compress(network, pruning());
  compression.backward(network.loss(x));
  const nn::StateDict state = compression.state();
  network.zero_grad();
  compression.backward(network.loss(y));

  Network other;
  CompressOptions options = pruning();
  options.gate.seed = 6;
  Compression resumed = compress(other, options);
  EXPECT_THAT(resumed.load_state(nn::to_state(nn::to_dict(state))), IsEmpty());
  resumed.backward(other.loss(y));
  EXPECT_TRUE(torch::equal(gradient(network), gradient(other)));

  Network third;
  Compression pruned_less = compress(third, pruning(0.5));
  EXPECT_THAT(pruned_less.load_state(state),
              ElementsAre("first, second: sparsity 0.5, the state has 0.8"));
  EXPECT_THAT([&] { resumed.load_state(nn::StateDict("State")); },
              ThrowsMessage<InvalidArgument>(HasSubstr("a state with a version")));
}

TEST(Compress, RemovedIsPlain) {
  Network network;
  const at::Tensor x = input();
  network.loss(x).backward();
  const at::Tensor plain = network.first->weight.grad().clone();
  network.zero_grad();
  Compression compression = compress(network, pruning());
  const at::Tensor loss = network.loss(x);
  compression.place_gates(loss);
  Compression moved = std::move(compression);
  moved.remove();
  const Warnings warnings;
  loss.backward();
  EXPECT_TRUE(torch::equal(network.first->weight.grad(), plain));
  EXPECT_THAT(warnings.texts, IsEmpty());
  EXPECT_THAT(calls(moved), ElementsAre(0, 0));
}

TEST(Compress, WarnsOnceOfAPlainBackward) {
  Network network;
  Compression compression = compress(network, pruning());
  const Warnings warnings;
  compression.backward(network.loss(input()));
  const at::Tensor loss = network.loss(input());
  compression.place_gates(loss);
  loss.backward();
  EXPECT_THAT(warnings.texts, IsEmpty());
  network.loss(input()).backward();
  network.loss(input()).backward();
  EXPECT_THAT(warnings.texts, ElementsAre(HasSubstr("call compression.backward(loss)")));
}

TEST(Compress, RefusesWithoutAnyChange) {
  Network network;
  const auto refuses = [&](const char* text, const auto& change) {
    CompressOptions options = pruning();
    change(options);
    EXPECT_THAT([&] { compress(network, options); },
                ThrowsMessage<InvalidArgument>(HasSubstr(text)));
  };
  refuses("prune or quantize", [](auto& o) { o.gate.settings = {}; });
  refuses("in include, got thrid", [](auto& o) { o.include = {"thrid"}; });
  refuses("left alone: first: excluded", [](auto& o) { o.exclude = {"first", "second"}; });
  refuses("in targets, got third", [](auto& o) {
    o.group.allocation = AllocationObjective::kMinCosine;
    o.group.targets = {{"third", 0.9}};
  });
  refuses("a schedule without an allocation", [](auto& o) {
    o.group.allocation = AllocationObjective::kMinCosine;
    o.gate.schedule = {{0, 0.5}};
  });
  refuses("0 <= ", [](auto& o) { o.gate.settings.sparsity = 2; });
  const Warnings warnings;
  network.loss(input()).backward();
  EXPECT_THAT(warnings.texts, IsEmpty());
  Compression compression = compress(network, pruning());
  EXPECT_THAT([&] { compression.backward(torch::ones({})); },
              ThrowsMessage<InvalidArgument>(HasSubstr("require a gradient")));
  const at::Tensor loss = network.loss(input());
  compression.place_gates(loss);
  EXPECT_THAT([&] { loss.backward({}, true, /*create_graph=*/true); },
              ThrowsMessage<c10::Error>(HasSubstr("got create_graph=True")));
  network.to(torch::kDouble);
  EXPECT_THAT([&] { compression.backward(network.loss(input().to(torch::kDouble))); },
              ThrowsMessage<InvalidArgument>(HasSubstr("got Double of ")));
}

}  // namespace
}  // namespace slimgrad
