#include "trainer/networks.h"

#include <gtest/gtest.h>
#include <torch/utils.h>

#include <set>

#include <slimgrad/error.h>
#include <slimgrad/gradient_gate.h>

#include "trainer/network_gates.h"

namespace slimgrad::trainer {
namespace {

constexpr SampleShape kImages{.channels = 3, .height = 16, .width = 16, .classes = 7};
constexpr SampleShape kText{.is_text = true, .classes = kTextVocabulary};

NetworkOptions options_of(const char* gradients) {
  NetworkOptions options;
  options.activations.function = "relu";
  options.gradients = parse_gradient_choice(gradients);
  options.gradients.min_elements = 1;
  return options;
}

class Networks : public testing::TestWithParam<const char*> {
 protected:
  SampleShape shape() const { return std::string_view(GetParam()) == "gpt" ? kText : kImages; }
  torch::Tensor input() const {
    return shape().is_text ? torch::randint(256, {2, kTextContext}, torch::kLong)
                           : torch::randn({2, 3, 16, 16});
  }
};

// What has a weight of two dimensions or more is a layer, or the table of an embedding.
TEST_P(Networks, HaveALayerForEveryMatrix) {
  const PartPtr network = make_network(GetParam(), shape(), options_of("none"));
  std::set<const void*> matrices, of_layers;
  for (const auto& parameter : network->named_parameters())
    if (parameter.value().dim() >= 2 && !parameter.key().starts_with("symbols") &&
        !parameter.key().starts_with("places"))
      matrices.insert(parameter.value().const_data_ptr());
  std::set<std::string> names;
  for (const Layer* layer : layers_of(*network)) {
    of_layers.insert(layer->weight.const_data_ptr());
    names.insert(layer->name);
  }
  EXPECT_EQ(matrices, of_layers);
  EXPECT_EQ(names.size(), of_layers.size());
  EXPECT_FALSE(names.contains(""));
}

TEST_P(Networks, PassEveryGradientThroughAGate) {
  torch::manual_seed(1);
  for (const char* gradients : {"prune:0.5+fp6", "sparse:0.5:0.5"}) {
    const NetworkOptions options = options_of(gradients);
    const PartPtr network = make_network(GetParam(), shape(), options);
    NetworkGates gates(*network, options.gradients);
    const torch::Tensor scores = network->forward(input());
    EXPECT_EQ(scores.size(-1), shape().classes);
    scores.square().sum().backward();
    const auto reports = gates.reports();
    const std::size_t gates_a_layer = options.gradients.sparse ? 2 : 1;
    EXPECT_EQ(reports.size(), gates_a_layer * layers_of(*network).size());
    // Images need no gradient, and the first layer need not make one for them.
    const std::string no_product = layers_of(*network).front()->name + ".input";
    for (const auto& [name, report] : reports) {
      if (name == no_product && !shape().is_text) continue;
      EXPECT_EQ(report.calls, 1) << name;
      EXPECT_GT(report.elements, 0) << name;
      if (!options.gradients.sparse) {
        EXPECT_TRUE(report.compressed) << name;
        EXPECT_TRUE(report.quantizer) << name;
      }
    }
    for (const auto& parameter : network->named_parameters())
      EXPECT_TRUE(parameter.value().grad().defined()) << parameter.key();
  }
}

// Rounding to integers changes nothing of shapes and gates; the first and last layer have none.
TEST_P(Networks, RoundTheInnerLayersToIntegers) {
  NetworkOptions options = options_of("fp8");
  options.fake_int4 = true;
  const PartPtr network = make_network(GetParam(), shape(), options);
  network->forward(input()).sum().backward();
  const auto layers = layers_of(*network);
  for (std::size_t i = 0; i < layers.size(); ++i)
    EXPECT_EQ(layers[i]->fake_int4, i > 0 && i + 1 < layers.size()) << layers[i]->name;
  for (const auto& parameter : network->named_parameters())
    EXPECT_TRUE(parameter.value().grad().defined()) << parameter.key();
}

INSTANTIATE_TEST_SUITE_P(All, Networks,
                         testing::Values("cnn", "linear", "mlp", "resnet20", "resnet18", "vgg11",
                                         "densenet", "gpt"),
                         [](const auto& info) { return std::string(info.param); });

TEST(NetworksOf, OtherDataAreRefused) {
  EXPECT_THROW(make_network("gpt", kImages, options_of("none")), InvalidArgument);
  EXPECT_THROW(make_network("cnn", kText, options_of("none")), InvalidArgument);
  EXPECT_THROW(make_network("transformer", kImages, options_of("none")), InvalidArgument);
}

// Without a normalisation a residual network begins as its shortcuts: nothing grows with depth.
TEST(NetworksOf, ResidualBranchesBeginAtZeroWithoutNormalisation) {
  torch::manual_seed(1);
  NetworkOptions options = options_of("none");
  options.batch_norm = false;
  const PartPtr network = make_network("resnet20", kImages, options);
  int zeros = 0;
  for (const Layer* layer : layers_of(*network)) {
    EXPECT_TRUE(layer->bias.defined());
    zeros += layer->weight.eq(0).all().item<bool>();
  }
  EXPECT_EQ(zeros, 9);
}

TEST(NetworkGatesOf, RefreshAndTargets) {
  torch::manual_seed(1);
  NetworkOptions options = options_of("prune:0.9");  // ReLU leaves half of them zero
  options.gradients.refresh_every = 0;               // once, then when asked to
  options.gradients.allocation = {.objective = AllocationObjective::kTargets,
                                  .targets = {{"linear1", 1.0}}};
  const PartPtr network = make_network("mlp", kImages, options);
  NetworkGates gates(*network, options.gradients);
  const auto pass = [&](double size) {
    gates.before_step();
    (size * network->forward(torch::ones({8, 3, 16, 16}))).square().sum().backward();
    return gates.reports();
  };
  const double first = pass(1)[1].second.threshold;
  EXPECT_GT(first, 0);
  EXPECT_EQ(pass(100)[1].second.threshold, first);
  EXPECT_EQ(gates.reports()[0].second.sparsity_wanted, 0);  // a target of 1: left exact
  gates.refresh();
  EXPECT_GT(pass(100)[1].second.threshold, 10 * first);
  options.gradients.allocation.targets = {{"linear", 0.5}};  // none is called so
  EXPECT_THROW(NetworkGates(*network, options.gradients), InvalidArgument);
}

}  // namespace
}  // namespace slimgrad::trainer
