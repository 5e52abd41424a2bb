// The gates of a model as one object. Python's tests of controllers cover the rest of it.
#include <slimgrad/gate_group.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <slimgrad/error.h>

namespace slimgrad {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::ThrowsMessage;

GateOptions pruning_to(double sparsity, std::uint64_t seed) {
  GateOptions options;
  options.settings.prune = PruneKind::kStochastic;
  options.settings.sparsity = sparsity;
  options.min_elements = 1;
  options.seed = seed;
  return options;
}

struct GateTensors {
  explicit GateTensors(const GateOptions& options) : plan(new_gate_plan(options)) {}

  void pass(double power = 1) {
    const at::Tensor x = at::ones({100, 100}).requires_grad_();
    gradient_gate(x, plan, stats).backward(at::randn({100, 100}).pow(power));
  }

  at::Tensor plan, stats = new_gate_stats();
};

GateGroup group_of(const GateTensors& a, const GateTensors& b, const GroupOptions& options = {}) {
  GateGroup group(options);
  group.add("a", a.plan, a.stats);
  group.add("b", b.plan, b.stats);
  return group;
}

const GroupOptions kSpread{.allocation = AllocationObjective::kMinCosine, .targets = {{"b", 1}}};

TEST(GateGroup, EntersOnceAfterEachBackwardPass) {
  GateOptions options = pruning_to(0.8, 1);
  options.allocation = kSpread.allocation;
  GateTensors a(options), b(options);
  GateGroup group = group_of(a, b, kSpread);
  EXPECT_THAT(group.names(), ElementsAre("a", "b"));
  EXPECT_FALSE(group.has_news(false));
  a.pass(), b.pass(3);
  EXPECT_TRUE(group.has_news(false));
  group.enter("b");
  EXPECT_FALSE(group.has_news(false) || group.has_news(true));
  const at::Tensor plan = a.plan.clone();
  group.enter("a");  // nothing new
  EXPECT_TRUE(at::equal(a.plan, plan));
  a.pass(), b.pass(3);
  const auto reports = group.reports();
  EXPECT_EQ(reports[1].gate.sparsity_wanted, 0);  // a target of 1
  EXPECT_GT(reports[0].gate.sparsity_wanted, 0.9);
  EXPECT_THAT([&] { group.enter("c"); }, ThrowsMessage<InvalidArgument>(HasSubstr("got c")));
}

TEST(GateGroup, CountsThePrunedProductsOfASparseLayer) {
  const auto state = [](double weight, double input) {
    return SparseLayerState{new_gate_plan(pruning_to(weight, 1)), new_gate_stats(),
                            new_gate_plan(pruning_to(input, 2)), new_gate_stats(),
                            new_sparse_choice()};
  };
  GateGroup group;
  group.add("layer", state(0.9, 0));
  EXPECT_THAT(group.names(), ElementsAre("layer.weight"));
  EXPECT_THAT(group.reports(), SizeIs(2));
  group.set_sparsity(0.5, "input");
  EXPECT_THAT(group.names(), ElementsAre("layer.weight", "layer.input"));
  group.set_sparsity(0, "weight");
  EXPECT_THAT(group.names(), ElementsAre("layer.input"));
  group.set_ways(SparseWay::kDense, "weight");
  const auto reports = group.reports();
  EXPECT_EQ(reports[0].product->setting, SparseWay::kDense);
  EXPECT_EQ(reports[1].product->setting, SparseWay::kAuto);
  EXPECT_THROW(group.set_sparsity(1), InvalidArgument);
}

TEST(GateGroup, LoadsAllOrNothing) {
  GateTensors a(pruning_to(0.8, 1)), b(pruning_to(0.8, 2));
  a.pass(), b.pass();
  GateGroup saved = group_of(a, b, kSpread);
  GateTensors x(pruning_to(0.5, 3)), y(pruning_to(0.8, 4));
  GateGroup group = group_of(x, y);
  std::map<std::string, at::Tensor> state = saved.state();
  state["c.choice"] = state["a.choice"] = new_sparse_choice();

  const at::Tensor before = x.plan.clone(), good = state["b.stats"];
  state["b.stats"] = at::zeros({3}, at::kDouble);
  EXPECT_THAT(
      [&] { group.load_state(state, {}); },
      ThrowsMessage<InvalidArgument>(HasSubstr("[load_state_dict] b: expected saved_stats")));
  state.erase("b.stats");
  EXPECT_THAT([&] { group.load_state(state, {}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("expected b.stats in the state, got none")));
  EXPECT_TRUE(at::equal(x.plan, before));

  state["b.stats"] = good;
  const LoadedState said = group.load_state(state, saved.settings());
  ASSERT_THAT(said.differences, SizeIs(1));
  EXPECT_EQ(said.differences[0].first, "sparsity 0.5, the state has 0.8");
  EXPECT_THAT(said.differences[0].second, ElementsAre("a"));
  EXPECT_THAT(said.settings,
              ElementsAre("cap none, the state has 0.98", "target of b none, the state has 1"));
  EXPECT_THAT(said.missing, IsEmpty());
  EXPECT_THAT(said.unknown, ElementsAre("a (of another kind)", "c"));
  EXPECT_TRUE(at::equal(y.plan, b.plan) && at::equal(y.stats, b.stats));
  EXPECT_EQ(gate_report(x.plan, x.stats).calls, 1);
}

}  // namespace
}  // namespace slimgrad
