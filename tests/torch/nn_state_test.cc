// State of modules apart from their parameters: saved, resumed, cloned, refused.
#include <slimgrad/nn.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ops/equal.h>
#include <ATen/ops/flatten.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/serialize.h>

#include <limits>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <slimgrad/error.h>

#include "torch/decide/plan_tensor.h"

namespace slimgrad::nn {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;

struct NetOptions {
  double sparsity = 0.8;
  bool always = true;
  int bits = 6;
};

SparseOptions sparse_options(const NetOptions& options, std::uint64_t seed) {
  SparseOptions sparse;
  sparse.weight_sparsity = sparse.input_sparsity = options.sparsity;
  sparse.gate.min_elements = 0;
  sparse.gate.refresh_every = 2;
  sparse.gate.seed = seed;
  sparse.always = options.always;
  return sparse;
}

// As users write one: its layers are made in reset(), so that it can be cloned.
struct NetImpl : torch::nn::Cloneable<NetImpl> {
  explicit NetImpl(const NetOptions& net_options = {}) : net_options(net_options) { reset(); }

  void reset() override {
    GateOptions gated;
    gated.settings.bits = net_options.bits;
    gated.min_elements = 0;
    const auto conv_options = torch::nn::Conv2dOptions(3, 8, 3).padding(1).bias(false);
    conv = register_module("conv", Conv2d(conv_options, sparse_options(net_options, 1)));
    gate = register_module("gate", GradientGate(gated));
    fc = register_module(
        "fc", Linear(torch::nn::LinearOptions(8 * 64, 10), sparse_options(net_options, 2)));
  }
  at::Tensor forward(const at::Tensor& x) { return fc(gate(at::flatten(at::relu(conv(x)), 1))); }

  NetOptions net_options;
  Conv2d conv{nullptr};
  GradientGate gate{nullptr};
  Linear fc{nullptr};
};
TORCH_MODULE(Net);

struct PlainNetImpl : torch::nn::Module {
  PlainNetImpl() {
    const auto options = torch::nn::Conv2dOptions(3, 8, 3).padding(1).bias(false);
    conv = register_module("conv", torch::nn::Conv2d(options));
    fc = register_module("fc", torch::nn::Linear(8 * 64, 10));
  }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::Linear fc{nullptr};
};
TORCH_MODULE(PlainNet);

void train(NetImpl& net, int first, int last) {
  for (int step = first; step < last; ++step) {
    torch::manual_seed(100 + static_cast<std::uint64_t>(step));
    net.zero_grad();
    net.forward(at::randn({16, 3, 8, 8})).square().mean().backward();
    const torch::NoGradGuard no_gradient;
    for (at::Tensor& parameter : net.parameters()) parameter.sub_(parameter.grad(), 0.1);
  }
}

template <typename Dict>
void expect_equal(const Dict& a, const Dict& b) {
  ASSERT_EQ(a.keys(), b.keys());
  for (const auto& item : a) EXPECT_TRUE(at::equal(item.value(), b[item.key()])) << item.key();
}
void expect_same(const torch::nn::Module& a, const torch::nn::Module& b) {
  expect_equal(a.named_parameters(), b.named_parameters());
  expect_equal(state_dict(a), state_dict(b));
}

TEST(NnState, IsNoBufferAndHasItsKeys) {
  const Net net;
  EXPECT_THAT(net->named_buffers().keys(), IsEmpty());
  EXPECT_EQ(net->named_parameters().keys(), PlainNet()->named_parameters().keys());
  EXPECT_THAT(
      state_dict(*net).keys(),
      ElementsAre("conv.choice", "conv.input.plan", "conv.input.stats", "conv.weight.plan",
                  "conv.weight.stats", "fc.choice", "fc.input.plan", "fc.input.stats",
                  "fc.weight.plan", "fc.weight.stats", "gate.plan", "gate.stats", "version"));
  // Of one module by itself, also where no pointer holds it.
  const GradientGateImpl gate{GateOptions{}};
  EXPECT_THAT(state_dict(gate).keys(), ElementsAre("plan", "stats", "version"));
  EXPECT_EQ(state_dict(*net->fc).keys().front(), "choice");
}

// An attention's projections have states of their own; clones have copies, and archives are those
// of torch's attention.
TEST(NnState, OfAnAttention) {
  const torch::nn::MultiheadAttentionOptions options(8, 2);
  MultiheadAttention attention(options, sparse_options({}, 3));
  const StateDict state = state_dict(*attention);
  EXPECT_EQ(state.size(), 4 * 5 + 1);
  for (const char* name : {"q.weight.plan", "k.input.stats", "v.choice", "out_proj.choice"})
    EXPECT_TRUE(state.contains(name)) << name;
  EXPECT_FALSE(at::equal(state["q.weight.plan"], state["k.weight.plan"]));  // seeds

  const auto copy = std::dynamic_pointer_cast<MultiheadAttentionImpl>(attention->clone());
  ASSERT_NE(copy, nullptr);
  const at::Tensor x = at::randn({6, 3, 8});
  const auto [y, weights] = copy->forward(x, x, x);
  y.sum().backward();
  EXPECT_FALSE(attention->in_proj_weight.grad().defined());
  EXPECT_TRUE(copy->in_proj_weight.grad().defined());
  EXPECT_TRUE(copy->out_proj->weight.grad().defined());
  expect_equal(state_dict(*attention), state);
  EXPECT_THAT(load_state_dict(*attention, state_dict(*copy)), IsEmpty());
  expect_equal(state_dict(*attention), state_dict(*copy));

  std::stringstream archive;
  torch::save(attention, archive);
  torch::nn::MultiheadAttention plain(options);
  torch::load(plain, archive);
  expect_equal(plain->named_parameters(), attention->named_parameters());
}

TEST(NnState, AttentionRefusesWrongMasks) {
  MultiheadAttention attention(torch::nn::MultiheadAttentionOptions(8, 2), sparse_options({}, 3));
  const at::Tensor x = at::randn({6, 3, 8});
  EXPECT_THAT(
      [&] {
        attention(x, x, x, at::zeros({6, 3}, at::kBool));
      },
      ThrowsMessage<InvalidArgument>(
          HasSubstr("[MultiheadAttention] expected key_padding_mask of shape (3, 6)")));
  EXPECT_THAT([&] { attention(x, x, x, at::Tensor(), false, at::Tensor(), true, true); },
              ThrowsMessage<InvalidArgument>(HasSubstr("expected attn_mask with is_causal")));
  // Without a batch.
  const auto [y, weights] = attention(x.select(1, 0), x.select(1, 0), x.select(1, 0));
  EXPECT_EQ(y.dim(), 2);
  EXPECT_EQ(weights.dim(), 2);
}

// Two gates, two layers and the two products of one, without a seed: none draws as another, and
// torch's generator reproduces them all. Ranks are streams.
TEST(NnState, DefaultSeedsAreTorchsAndDiffer) {
  const auto seeds = [] {
    torch::manual_seed(3);
    SparseOptions sparse;
    const torch::nn::LinearOptions four(4, 4);
    const Linear layers[] = {Linear(four, sparse), Linear(four, sparse)};
    const GradientGate gates[] = {GradientGate(GateOptions{}), GradientGate(GateOptions{})};
    std::vector<at::Tensor> plans = {gates[0]->plan, gates[1]->plan};
    for (const Linear& layer : layers)
      for (const at::Tensor& plan : {layer->state().weight_plan, layer->state().input_plan})
        plans.push_back(plan);
    std::vector<std::uint64_t> found;
    for (const at::Tensor& plan : plans)
      found.push_back(*torch_ops::read_plan(plan, "test").options.seed);
    return found;
  };
  const std::vector<std::uint64_t> found = seeds();
  EXPECT_EQ(std::set(found.begin(), found.end()).size(), 6u);
  EXPECT_EQ(seeds(), found);
}

TEST(NnState, StreamsDrawDifferently) {
  const at::Tensor gradient = at::randn({8192});
  const auto treated = [&](std::int64_t stream) {
    GateOptions options{.seed = 5};
    options.settings.prune = PruneKind::kStochastic;
    options.settings.sparsity = 0.8;
    const GradientGate gate(options, stream);
    const at::Tensor x = at::zeros({8192}).requires_grad_();
    gate.ptr()->forward(x).backward(gradient);
    return x.grad();
  };
  EXPECT_TRUE(at::equal(treated(0), treated(0)));
  EXPECT_FALSE(at::equal(treated(0), treated(1)));
}

TEST(NnState, ResumesToTheBit) {
  torch::manual_seed(1);
  Net whole;
  Net interrupted(std::dynamic_pointer_cast<NetImpl>(whole->clone()));
  train(*whole, 0, 6);
  train(*interrupted, 0, 3);
  std::stringstream weights;
  torch::save(interrupted, weights);
  const std::vector<char> bytes = torch::pickle_save(to_dict(state_dict(*interrupted)));

  torch::manual_seed(2);
  Net resumed;
  torch::load(resumed, weights);
  EXPECT_THAT(load_state_dict(*resumed, to_state(torch::pickle_load(bytes))), IsEmpty());
  train(*resumed, 3, 6);
  expect_same(*resumed, *whole);
  EXPECT_EQ(resumed->gate->report().calls, 6);
  EXPECT_TRUE(sparse_report(resumed->fc->state().choice).weight.was_sparse);
}

TEST(NnState, ArchivesOfPlainLayersLoadBothWays) {
  PlainNet plain;
  Net net;
  train(*net, 0, 1);
  std::stringstream to_plain, to_net;
  torch::save(net, to_plain);
  torch::load(plain, to_plain);
  expect_equal(plain->named_parameters(), net->named_parameters());
  Net other;
  torch::save(plain, to_net);
  torch::load(other, to_net);
  expect_equal(other->named_parameters(), net->named_parameters());
}

TEST(NnState, ACloneHasAStateOfItsOwn) {
  Net net;
  train(*net, 0, 2);
  net->conv->weight.set_requires_grad(false);
  net->eval();
  const auto layer = std::dynamic_pointer_cast<Conv2dImpl>(net->conv->clone());
  ASSERT_NE(layer, nullptr);
  EXPECT_FALSE(layer->weight.requires_grad() || layer->is_training() || layer->bias.defined());
  expect_same(*layer, *net->conv);
  EXPECT_NE(layer->weight.data_ptr(), net->conv->weight.data_ptr());
  EXPECT_TRUE(layer->weight.is_same(layer->named_parameters()["weight"]));

  net->conv->weight.set_requires_grad(true);
  const auto copy = std::dynamic_pointer_cast<NetImpl>(net->clone());
  expect_same(*copy, *net);
  const StateDict before = state_dict(*net);
  const at::Tensor weight = net->fc->weight.clone();
  train(*copy, 2, 3);
  expect_equal(state_dict(*net), before);
  EXPECT_TRUE(at::equal(net->fc->weight, weight));
  EXPECT_EQ(copy->gate->report().calls, 3);
  EXPECT_EQ(gate_report(copy->fc->state().weight_plan, copy->fc->state().weight_stats).calls, 3);
  train(*net, 2, 3);
  expect_same(*copy, *net);
}

TEST(NnState, DifferencesAreSaidAndOursWin) {
  Net saved(NetOptions{.sparsity = 0.9, .always = true, .bits = 6});
  train(*saved, 0, 3);
  Net net(NetOptions{.sparsity = 0.5, .always = false, .bits = 4});
  EXPECT_THAT(load_state_dict(*net, state_dict(*saved)),
              ElementsAre("conv.weight: sparsity 0.5, the state has 0.9",
                          "conv.input: sparsity 0.5, the state has 0.9",
                          "fc.weight: sparsity 0.5, the state has 0.9",
                          "fc.input: sparsity 0.5, the state has 0.9",
                          "conv: sparse_backward True, the state has 'always'",
                          "fc: sparse_backward True, the state has 'always'",
                          "gate: bits 4, the state has 6"));
  EXPECT_EQ(net->gate->report().calls, 3);
  train(*net, 3, 4);
  EXPECT_EQ(net->gate->report().calls, 4);
  EXPECT_EQ(net->gate->report().quantizer->format.bits(), 4);
  const SparseLayerState state = net->fc->state();
  EXPECT_EQ(gate_report(state.weight_plan, state.weight_stats).sparsity_wanted, 0.5);
  EXPECT_EQ(sparse_report(state.choice).weight.setting, SparseWay::kAuto);
}

TEST(NnState, LayersOfOneSideAreSaid) {
  Net net;
  train(*net, 0, 1);
  StateDict state("State");
  const StateDict all = state_dict(*net);
  for (const auto& item : all)
    if (!item.key().starts_with("conv")) state.insert(item.key(), item.value());
  state.insert("head.weight.plan", all["fc.weight.plan"]);
  state.insert("head.choice", all["fc.choice"]);
  Net other;
  EXPECT_THAT(load_state_dict(*other, state),
              ElementsAre("conv: not in the saved state; this layer starts from its initial state",
                          "head: in the saved state but not in this module; ignored",
                          "head.weight: in the saved state but not in this module; ignored"));
  EXPECT_EQ(other->gate->report().calls, 1);
}

TEST(NnState, ADamagedStateIsRefusedAndChangesNothing) {
  Net saved, net;
  train(*saved, 0, 2);
  train(*net, 0, 1);
  const StateDict before = state_dict(*net);
  const auto refused = [&](const std::string& key, const at::Tensor& value, const char* words) {
    StateDict state("State");
    for (const auto& item : state_dict(*saved))
      if (item.key() != key)
        state.insert(item.key(), item.value());
      else if (value.defined())
        state.insert(key, value);
    EXPECT_THAT([&] { load_state_dict(*net, state); },
                ThrowsMessage<InvalidArgument>(HasSubstr(words)));
    expect_equal(state_dict(*net), before);
  };
  const StateDict whole = state_dict(*saved);
  refused("fc.choice", at::full_like(whole["fc.choice"], 7), "[load_state_dict] fc: expected");
  refused("fc.choice", {}, "expected fc.choice in the state, got none");
  refused("fc.input.plan", whole["fc.input.plan"].to(at::kFloat),
          "[load_state_dict] fc.input: expected saved_plan as");
  refused("fc.weight.stats",
          at::full_like(whole["fc.weight.stats"], std::numeric_limits<double>::quiet_NaN()),
          "in saved_stats a number of elements");
  refused("version", {}, "expected a state with a version");
  refused("version", at::full({}, 2), "expected a state of version 1, got version 2");
  EXPECT_THROW(to_state(c10::IValue(3)), InvalidArgument);
}

TEST(Modules, RefuseOptionsWithoutEffect) {
  const auto refused = [](auto change, const char* what) {
    SparseOptions options;
    change(options);
    EXPECT_THAT([&] { Linear(torch::nn::LinearOptions(4, 4), options); },
                ThrowsMessage<InvalidArgument>(HasSubstr(std::string("[SparseOptions] ") + what)));
  };
  refused([](SparseOptions& o) { o.gate.settings.sparsity = 0.9; }, "expected weight_sparsity");
  refused([](SparseOptions& o) { o.gate.settings.prune = PruneKind::kTopK; },
          "expected stochastic pruning, got topk");
  refused([](SparseOptions& o) { o.gate.settings.bits = 4; }, "expected 0 bits, got 4");
  refused([](SparseOptions& o) { o.gate.settings.rounding = Rounding::kNearest; },
          "expected bits with a rounding");
  refused([](SparseOptions& o) { o.weight_sparsity = 1; }, "expected 0 <= sparsity < 1");
  GateOptions gate;
  gate.settings.sparsity = 0.9;
  EXPECT_THAT([&] { GradientGate{gate}; },
              ThrowsMessage<InvalidArgument>(HasSubstr("[GradientGate] expected a kind")));
  const torch::nn::Conv2dOptions conv(4, 4, 3);
  EXPECT_THAT(
      [&] { Conv2d(torch::nn::Conv2dOptions(conv).padding(torch::kSame), SparseOptions()); },
      ThrowsMessage<InvalidArgument>(HasSubstr("[Conv2d] expected padding as numbers")));
  EXPECT_THAT(
      [&] {
        Conv2d(torch::nn::Conv2dOptions(conv).padding_mode(torch::kReflect), SparseOptions());
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("[Conv2d] expected padding_mode torch::kZeros")));
}

}  // namespace
}  // namespace slimgrad::nn
