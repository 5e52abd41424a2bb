// A gate's plan: the same from C++ and, by names, from Python; and every number under its name.
#include "torch/decide/plan_tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>

#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <slimgrad/error.h>
#include <slimgrad/sparse_layers.h>

namespace slimgrad::torch_ops {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

// new_gate_plan as Python calls it: what is not named has the schema's default.
at::Tensor plan_by_names(const std::map<std::string, c10::IValue>& named) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("slimgrad::new_gate_plan", "");
  std::vector<c10::IValue> stack;
  std::size_t used = 0;
  for (const c10::Argument& argument : op.schema().arguments()) {
    const auto found = named.find(argument.name());
    used += found != named.end() ? 1 : 0;
    stack.push_back(found != named.end() ? found->second : *argument.default_value());
  }
  EXPECT_EQ(used, named.size()) << "a name that the schema does not have";
  op.callBoxed(&stack);
  return stack.at(0).toTensor();
}

TEST(GatePlan, IsTheSameByStructAndByNames) {
  EXPECT_TRUE(at::equal(new_gate_plan({.seed = 0}), plan_by_names({{"seed", 0}})));

  GateOptions pruned;
  pruned.settings.prune = PruneKind::kStochastic;
  pruned.settings.sparsity = 0.5;
  pruned.settings.method = ThresholdMethod::kLognormal;
  pruned.schedule = {{0, 0.5}, {100, 0.9}};
  pruned.seed = 7;
  EXPECT_TRUE(at::equal(new_gate_plan(pruned),
                        plan_by_names({{"prune", "stochastic"},
                                       {"sparsity", 0.5},
                                       {"method", "lognormal"},
                                       {"schedule_calls", std::vector<std::int64_t>{0, 100}},
                                       {"schedule_sparsities", std::vector<double>{0.5, 0.9}},
                                       {"seed", 7}})));
  pruned.schedule.clear();
  pruned.allocation = AllocationObjective::kMeanError;
  EXPECT_TRUE(at::equal(new_gate_plan(pruned), plan_by_names({{"prune", "stochastic"},
                                                              {"sparsity", 0.5},
                                                              {"method", "lognormal"},
                                                              {"allocation", "mean_error"},
                                                              {"seed", 7}})));

  // A fixed format has its own number of bits; the loss scale is fixed, too.
  GateOptions quantized;
  quantized.settings.format = FloatFormat(3, 2);
  quantized.settings.bits = 6;
  quantized.settings.rounding = Rounding::kNearest;
  quantized.settings.underflow = Underflow::kZero;
  quantized.settings.fixed_scale = 0x1p-10;
  quantized.dynamic_scale = true;
  quantized.seed = 0;
  EXPECT_TRUE(at::equal(new_gate_plan(quantized), plan_by_names({{"exponent_bits", 3},
                                                                 {"mantissa_bits", 2},
                                                                 {"rounding", "nearest"},
                                                                 {"underflow", "zero"},
                                                                 {"fixed_scale", 0x1p-10},
                                                                 {"dynamic_scale", true},
                                                                 {"seed", 0}})));

  GateOptions measured;
  measured.settings.bits = 4;
  measured.settings.split = SplitMethod::kNormal;
  measured.settings.scale_method = ScaleMethod::kPredicted;
  measured.seed = 7;
  measured.min_elements = 10;
  measured.sample_size = 1000;
  measured.refresh_every = 0;
  measured.warmup = 20;
  EXPECT_TRUE(at::equal(new_gate_plan(measured), plan_by_names({{"bits", 4},
                                                                {"split", "normal"},
                                                                {"scale_method", "predicted"},
                                                                {"seed", 7},
                                                                {"min_elements", 10},
                                                                {"sample_size", 1000},
                                                                {"refresh_every", 0},
                                                                {"warmup", 20}})));
}

// The names of the fields in which the plans of two states differ.
std::vector<std::string> changed_fields(const GateState& before, const GateState& after) {
  const at::Tensor plans[] = {new_gate_plan({}), new_gate_plan({})};
  write_plan(before, plans[0]);
  write_plan(after, plans[1]);
  const std::vector<std::string> names = plan_field_names();
  EXPECT_EQ(names.size(), static_cast<std::size_t>(plans[0].numel()));
  std::vector<std::string> changed;
  for (std::size_t i = 0; i < names.size(); ++i)
    if (plans[0].const_data_ptr<double>()[i] != plans[1].const_data_ptr<double>()[i])
      changed.push_back(names[i]);
  return changed;
}

// A change of one field of the state, by the name of the plan's field that must show it.
using Change = std::function<void(GateState&)>;

std::map<std::string, Change> all_changes() {
  const auto of_gate = [](auto member, auto value) -> Change {
    return [=](GateState& gate) { gate.*member = value; };
  };
  const auto of_options = [](auto member, auto value) -> Change {
    return [=](GateState& gate) { gate.options.*member = value; };
  };
  const auto of_settings = [](auto member, auto value) -> Change {
    return [=](GateState& gate) { gate.options.settings.*member = value; };
  };
  const auto in_force = [](auto member, auto value) -> Change {
    return [=](GateState& gate) { gate.in_force.*member = value; };
  };
  using Options = GateOptions;
  using Settings = GradientSettings;
  std::map<std::string, Change> changes = {
      {"min_elements", of_options(&Options::min_elements, 1)},
      {"sample_size", of_options(&Options::sample_size, 1)},
      {"refresh_every", of_options(&Options::refresh_every, 3)},
      {"warmup", of_options(&Options::warmup, 1)},
      {"prune", of_settings(&Settings::prune, PruneKind::kTopK)},
      {"method", of_settings(&Settings::method, ThresholdMethod::kLognormal)},
      {"bits", of_settings(&Settings::bits, 7)},
      {"exponent_bits", of_settings(&Settings::format, FloatFormat(4, 2))},
      {"mantissa_bits", of_settings(&Settings::format, FloatFormat(3, 3))},
      {"split", of_settings(&Settings::split, SplitMethod::kNormal)},
      {"scale_method", of_settings(&Settings::scale_method, ScaleMethod::kPredicted)},
      {"rounding", of_settings(&Settings::rounding, Rounding::kNearest)},
      {"underflow", of_settings(&Settings::underflow, Underflow::kZero)},
      {"target", of_gate(&GateState::target, 0.7)},
      {"asked_scale", of_gate(&GateState::asked_scale, 2.0)},
      {"allocation", of_options(&Options::allocation, AllocationObjective::kMinCosine)},
      {"dynamic_scale", of_options(&Options::dynamic_scale, true)},
      {"seed_low", of_options(&Options::seed, 1)},
      {"seed_high", of_options(&Options::seed, std::uint64_t{1} << 32)},
      {"calls", of_gate(&GateState::calls, 1)},
      {"due", of_gate(&GateState::due, false)},
      {"sparsity", of_settings(&Settings::sparsity, 0.7)},
      {"fixed_scale", of_settings(&Settings::fixed_scale, 2.0)},
      {"threshold", in_force(&Treatment::threshold, 0.1)},
      {"drops", in_force(&Treatment::drops, true)},
      {"format_exponent", in_force(&Treatment::quantizer, Quantizer{FloatFormat(4, 2), 1.0})},
      {"format_mantissa", in_force(&Treatment::quantizer, Quantizer{FloatFormat(3, 3), 1.0})},
      {"scale", in_force(&Treatment::quantizer, Quantizer{FloatFormat(3, 2), 2.0})},
      {"good_steps", of_gate(&GateState::good_steps, 1)},
      {"seen_calls", of_gate(&GateState::seen_calls, 1)}};
  for (std::size_t i = 0; i < kMostSchedulePoints; ++i) {
    const std::string number = std::to_string(i);
    changes["schedule_call_" + number] = [i](GateState& g) { g.options.schedule[i].call = 99; };
    changes["schedule_sparsity_" + number] = [i](GateState& g) {
      g.options.schedule[i].sparsity = 0.7;
    };
  }
  return changes;
}

TEST(GatePlan, EveryFieldIsUnderItsName) {
  GateState plain;
  plain.options.settings.format = FloatFormat(3, 2);
  plain.options.schedule.assign(kMostSchedulePoints, {1, 0.5});
  plain.in_force.quantizer = Quantizer{FloatFormat(3, 2), 1.0};
  const std::map<std::string, Change> changes = all_changes();
  for (const std::string& name : plan_field_names()) {
    GateState changed = plain;
    ASSERT_TRUE(changes.contains(name)) << name;
    changes.at(name)(changed);
    EXPECT_THAT(changed_fields(plain, changed), ElementsAre(name));
  }
}

TEST(GatePlan, HoldsNoNumbersThatAFloat64DoesNot) {
  GateOptions options;
  options.min_elements = std::numeric_limits<std::int64_t>::max();
  EXPECT_THAT([&] { new_gate_plan(options); },
              ThrowsMessage<InvalidArgument>(HasSubstr("[new_gate_plan] expected a whole number")));
}

// What is wrong with a gate's tensors shows in forward, and is misuse as elsewhere.
TEST(GatePlan, IsLookedAtInForward) {
  const at::Tensor x = at::ones({4}).requires_grad_();
  const at::Tensor plan = new_gate_plan({}), stats = new_gate_stats();
  EXPECT_NO_THROW(gradient_gate(x, plan, stats));
  at::Tensor spoiled = plan.clone();
  spoiled[0] = -1;
  for (const at::Tensor& bad : {spoiled, plan.to(at::kFloat), plan.slice(0, 1), at::Tensor()})
    EXPECT_THROW(gradient_gate(x, bad, stats), InvalidArgument);
  EXPECT_THROW(gradient_gate(x, plan, stats.slice(0, 1)), InvalidArgument);
  EXPECT_THROW(gradient_gate(x.to(at::kDouble), plan, stats), InvalidArgument);
}

}  // namespace
}  // namespace slimgrad::torch_ops
