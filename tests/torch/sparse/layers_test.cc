#include <slimgrad/sparse_layers.h>

#include <gtest/gtest.h>

#include <ATen/ops/randn.h>

#include <cmath>

#include <slimgrad/error.h>

namespace slimgrad {
namespace {

SparseLayerState new_state() {
  GateOptions options;
  options.settings.prune = PruneKind::kStochastic;
  options.settings.sparsity = 0.8;
  options.min_elements = 0;
  return {new_gate_plan(options), new_gate_stats(), new_gate_plan(options), new_gate_stats(),
          new_sparse_choice()};
}

void backward(const SparseLayerState& state) {
  const at::Tensor x = at::randn({64, 32}).requires_grad_();
  const at::Tensor weight = at::randn({48, 32}).requires_grad_();
  sparse_linear(x, weight, std::nullopt, state).backward(at::randn({64, 48}));
}

TEST(SparseLayers, TheModelDecidesInTheFirstPass) {
  const SparseLayerState state = new_state();
  EXPECT_TRUE(std::isnan(sparse_break_even(state.choice).weight));
  EXPECT_EQ(sparse_report(state.choice).input.chosen_by, ChosenBy::kNobody);
  backward(state);
  const SparseReport report = sparse_report(state.choice);
  EXPECT_EQ(report.weight.chosen_by, ChosenBy::kModel);
  EXPECT_EQ(report.weight.trials, 0);
  EXPECT_EQ(sparse_break_even(state.choice).input, report.input.break_even);
}

TEST(SparseLayers, AWayIsSet) {
  const SparseLayerState state = new_state();
  set_sparse_ways(state.choice, SparseWay::kSparse, std::nullopt);
  backward(state);
  const SparseReport report = sparse_report(state.choice);
  EXPECT_EQ(report.weight.setting, SparseWay::kSparse);
  EXPECT_EQ(report.weight.chosen_by, ChosenBy::kUser);
  EXPECT_TRUE(report.weight.was_sparse);
  EXPECT_EQ(report.input.setting, SparseWay::kAuto);
  EXPECT_EQ(parse_sparse_way(sparse_way_name(SparseWay::kDense)), SparseWay::kDense);
  EXPECT_THROW(parse_sparse_way("quick"), InvalidArgument);
  EXPECT_EQ(sparse_report(new_sparse_choice(true)).input.setting, SparseWay::kSparse);
}

// What is wrong with a layer's tensors shows in forward, and is misuse as elsewhere.
TEST(SparseLayers, TheStateIsLookedAtInForward) {
  const at::Tensor x = at::randn({64, 32}).requires_grad_();
  const at::Tensor weight = at::randn({48, 32}).requires_grad_();
  const auto refused = [&](auto spoil) {
    SparseLayerState state = new_state();
    EXPECT_NO_THROW(sparse_linear(x, weight, std::nullopt, state));
    spoil(state);
    EXPECT_THROW(sparse_linear(x, weight, std::nullopt, state), InvalidArgument);
  };
  refused([](SparseLayerState& s) { s.weight_plan = s.weight_plan.slice(0, 1); });
  refused([](SparseLayerState& s) { s.input_plan = s.input_plan.to(at::kFloat); });
  refused([](SparseLayerState& s) { s.input_plan[0] = -1; });
  refused([](SparseLayerState& s) { s.weight_stats = s.choice; });
  refused([](SparseLayerState& s) { s.choice[0] = 0.5; });
  GateOptions quantized;
  quantized.settings.bits = 4;
  refused([&](SparseLayerState& s) { s.weight_plan = new_gate_plan(quantized); });
  EXPECT_THROW(sparse_conv2d(x, weight, std::nullopt, {1, 1}, {0, 0}, {1, 1}, 1, new_state()),
               InvalidArgument);
}

TEST(SparseLayers, TheClockIsAsked) {
  const SparseLayerState state = new_state();
  time_sparse_ways(state.choice, true);
  backward(state);
  backward(state);
  time_sparse_ways(state.choice, false);
  const SparseReport report = sparse_report(state.choice);
  EXPECT_EQ(report.input.chosen_by, ChosenBy::kTiming);
  EXPECT_EQ(report.input.trials, 2);
  EXPECT_GT(report.input.dense_seconds, 0);
  backward(state);
  EXPECT_EQ(sparse_report(state.choice).input.trials, 2);
  EXPECT_EQ(sparse_break_even(state.choice).input, report.input.break_even);
}

}  // namespace
}  // namespace slimgrad
