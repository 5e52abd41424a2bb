#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <slimgrad/error.h>
#include <slimgrad/gate.h>

namespace slimgrad {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<float> lognormal_values(std::size_t count, unsigned seed = 5) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<double> normal;
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = static_cast<float>((i % 2 ? 1 : -1) * std::exp(1.5 * normal(engine) - 7));
  return values;
}

GateOptions pruning_to(double sparsity) {
  GateOptions options;
  options.settings.prune = PruneKind::kStochastic;
  options.settings.sparsity = sparsity;
  options.seed = 77;
  return options;
}

GateOptions quantizing_to(int bits, double loss_scale = 0) {
  GateOptions options;
  options.settings.bits = bits;
  options.settings.fixed_scale = loss_scale > 0 ? 1 / loss_scale : 0;
  options.dynamic_scale = loss_scale > 0;
  options.seed = 77;
  return options;
}

// After some passes.
GateState used(const GateOptions& options, int passes = 5) {
  GateState gate = new_gate(options);
  for (int i = 0; i < passes; ++i) {
    auto values = lognormal_values(20000, static_cast<unsigned>(i));
    pass_gate(gate, std::span<const float>(values), std::span<float>(values));
  }
  return gate;
}

std::vector<float> next_pass(GateState& gate) {
  auto values = lognormal_values(20000, 99);
  pass_gate(gate, std::span<const float>(values), std::span<float>(values));
  return values;
}

TEST(ResumeGate, WithEqualSettingsGoesOnToTheBit) {
  GateOptions scheduled = pruning_to(0.5);
  scheduled.schedule = {{0, 0.5}, {10, 0.9}};
  scheduled.refresh_every = 3;
  GateOptions stale = pruning_to(0.9);
  stale.refresh_every = 0;
  stale.settings.bits = 6;
  for (const GateOptions& options : {scheduled, stale, quantizing_to(4, 1024)}) {
    GateState whole = used(options), resumed = new_gate(options);
    resumed.options.seed = 3;  // a seed is state
    EXPECT_THAT(resume_gate(resumed, whole), IsEmpty());
    EXPECT_EQ(resumed.calls, 5);
    EXPECT_FALSE(resumed.due);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(next_pass(resumed), next_pass(whole));
  }
}

TEST(ResumeGate, WhatAnAllocationWroteIsState) {
  GateOptions options = pruning_to(0.85);
  options.allocation = AllocationObjective::kMinCosine;
  GateState saved = used(options), gate = new_gate(options);
  saved.options.settings.sparsity = 0.93;
  EXPECT_THAT(resume_gate(gate, saved), IsEmpty());
  EXPECT_EQ(gate.options.settings.sparsity, 0.93);

  // Without an allocation nobody would ever change it.
  GateState uniform = new_gate(pruning_to(0.85));
  EXPECT_THAT(resume_gate(uniform, saved),
              ElementsAre("allocation 'uniform', the state has 'min_cosine'"));
  EXPECT_EQ(uniform.options.settings.sparsity, 0.85);
  EXPECT_TRUE(uniform.due);

  options.settings.sparsity = 0.5;
  GateState other = new_gate(options);
  EXPECT_THAT(resume_gate(other, saved), ElementsAre("sparsity 0.5, the state has 0.85"));
  EXPECT_EQ(other.options.settings.sparsity, 0.5);  // until the next allocation
}

TEST(ResumeGate, OurScheduleHoldsAtTheRestoredCall) {
  GateOptions options = pruning_to(0.5);
  options.refresh_every = 0;
  const GateState saved = used(options);
  options.schedule = {{0, 0.5}, {10, 0.9}};
  GateState gate = new_gate(options);
  EXPECT_THAT(resume_gate(gate, saved),
              ElementsAre("schedule {0: 0.5, 10: 0.9}, the state has none"));
  EXPECT_DOUBLE_EQ(gate.options.settings.sparsity, 0.7);
  next_pass(gate);
  EXPECT_EQ(gate.calls, 6);
  EXPECT_FALSE(gate.due);
  EXPECT_GT(gate.in_force.threshold, saved.in_force.threshold);

  // And the other way round: what the schedule had come to is not ours.
  GateState plain = new_gate(pruning_to(0.5));
  EXPECT_THAT(
      resume_gate(plain, used(options)),
      ElementsAre("schedule none, the state has {0: 0.5, 10: 0.9}", "refresh 1, the state has 0"));
  EXPECT_EQ(plain.options.settings.sparsity, 0.5);
}

TEST(ResumeGate, ALossScaleOfOurOwnBeginsAnew) {
  GateState saved = used(quantizing_to(6, 1024));
  saved.options.settings.fixed_scale = 1.0 / 256;
  saved.good_steps = 3;
  GateState same = new_gate(quantizing_to(6, 1024));
  EXPECT_THAT(resume_gate(same, saved), IsEmpty());
  EXPECT_EQ(same.options.settings.fixed_scale, 1.0 / 256);
  EXPECT_EQ(same.good_steps, 3);

  const auto begins_anew = [&](GateOptions options, auto... words) {
    GateState gate = new_gate(options);
    EXPECT_THAT(resume_gate(gate, saved), ElementsAre(words...));
    EXPECT_EQ(gate.options.settings.fixed_scale, options.settings.fixed_scale);
    EXPECT_EQ(gate.good_steps, 0);
    EXPECT_TRUE(gate.due);
    next_pass(gate);
    if (options.settings.fixed_scale > 0) {
      EXPECT_EQ(gate.in_force.quantizer->scale, options.settings.fixed_scale);
    }
  };
  begins_anew(quantizing_to(6, 3000), "loss scale 3000, the state has 1024");
  begins_anew(quantizing_to(4, 1024), "bits 4, the state has 6");
  GateOptions fixed = quantizing_to(6, 1024);
  fixed.dynamic_scale = false;
  begins_anew(fixed, "dynamic loss scale False, the state has True");
  begins_anew(quantizing_to(6), "loss scale none, the state has 1024",
              "dynamic loss scale False, the state has True");
  GateOptions next = quantizing_to(6, 1024);
  next.settings.fixed_scale = std::nextafter(next.settings.fixed_scale, 1.0);
  begins_anew(next, "fixed scale 0.0009765625000000002, the state has 0.0009765625");
}

TEST(ResumeGate, NamesEverySettingThatDiffersAndOursHolds) {
  using Change = std::function<void(GateOptions&)>;
  struct Case {
    Change change;
    std::string words;
    bool plans_anew;
  };
  const std::vector<Case> cases = {
      {[](auto& o) { o.settings.prune = PruneKind::kTopK; },
       "kind 'topk', the state has 'stochastic'", true},
      {[](auto& o) { o.settings.method = ThresholdMethod::kLognormal; },
       "method 'lognormal', the state has 'empirical'", true},
      {[](auto& o) { o.settings.format = FloatFormat(3, 2); }, "format '1-3-2', the state has none",
       true},
      {[](auto& o) { o.settings.bits = 0; }, "bits none, the state has 6", true},
      {[](auto& o) { o.settings.split = SplitMethod::kNormal; },
       "split method 'normal', the state has 'empirical'", true},
      {[](auto& o) { o.settings.scale_method = ScaleMethod::kError; },
       "scale 'error', the state has 'max'", true},
      {[](auto& o) { o.settings.rounding = Rounding::kNearest; },
       "rounding 'nearest', the state has 'stochastic'", true},
      {[](auto& o) { o.settings.underflow = Underflow::kZero; },
       "underflow 'zero', the state has 'stochastic'", true},
      {[](auto& o) { o.sample_size = 5000; }, "sample 5000, the state has 65536", true},
      {[](auto& o) { o.min_elements = 1; }, "min_elements 1, the state has 4096", false},
      {[](auto& o) { o.refresh_every = 7; }, "refresh 7, the state has 0", false},
      {[](auto& o) { o.warmup = 8; }, "warmup 8, the state has 0", false},
  };
  GateOptions options = pruning_to(0.8);
  options.settings.bits = 6;
  options.refresh_every = 0;
  const GateState saved = used(options);
  for (const auto& [change, words, plans_anew] : cases) {
    GateOptions ours = options;
    change(ours);
    GateState gate = new_gate(ours), fresh = gate;
    EXPECT_THAT(resume_gate(gate, saved), ElementsAre(words));
    EXPECT_EQ(gate.due, plans_anew) << words;
    EXPECT_EQ(gate.options.settings.sparsity, 0.8) << words;
    EXPECT_EQ(gate.calls, 5) << words;
    if (!plans_anew) continue;
    // What our settings alone come to on the same gradient and draw.
    fresh.calls = 5;
    EXPECT_EQ(next_pass(gate), next_pass(fresh)) << words;
  }
}

TEST(ResumeGate, RefusesAStateThatIsNoneAndChangesNothing) {
  GateState good = used(quantizing_to(6));
  GateOptions pruned = pruning_to(0.5);
  const std::vector<std::function<void(GateState&)>> spoils = {
      [](GateState& g) { g.calls = -1; }, [](GateState& g) { g.target = 1; },
      [](GateState& g) { g.asked_scale = -1; },
      [](GateState& g) { g.options.settings.sparsity = std::nan(""); },
      [](GateState& g) { g.in_force.threshold = std::numeric_limits<double>::infinity(); },
      [](GateState& g) { g.in_force.quantizer->scale = 0; },
      [](GateState& g) { g.good_steps = -1; }, [](GateState& g) { g.seen_calls = -1; },
      // Draws are numbered by calls, which a float64 holds: 2^53 + 1 is 2^53 in it.
      [](GateState& g) { g.calls = kMostCalls + 1; },
      [](GateState& g) { g.good_steps = kMostCalls + 1; },
      [](GateState& g) { g.seen_calls = kMostCalls + 1; }};
  for (const auto& spoil : spoils) {
    GateState bad = good, gate = new_gate(pruned);
    spoil(bad);
    EXPECT_THROW(resume_gate(gate, bad), InvalidArgument);
    EXPECT_EQ(gate.calls, 0);
    EXPECT_EQ(gate.options.seed, 77u);
  }
}

}  // namespace
}  // namespace slimgrad
