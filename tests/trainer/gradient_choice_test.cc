#include "trainer/gradient_choice.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>

#include <slimgrad/error.h>

namespace slimgrad::trainer {
namespace {

TEST(GradientChoice, ReadsFormatsAndSparsity) {
  EXPECT_FALSE(parse_gradient_choice("none").gates);
  EXPECT_FALSE(parse_gradient_choice("none").sparse);
  const auto fp6 = parse_gradient_choice("fp6").gates;
  ASSERT_TRUE(fp6);
  EXPECT_EQ(fp6->bits, 6);
  EXPECT_EQ(fp6->prune, PruneKind::kNone);
  EXPECT_EQ(fp6->rounding, Rounding::kStochastic);
  EXPECT_EQ(fp6->underflow, Underflow::kStochastic);
  const auto pruned = parse_gradient_choice("prune:0.85").gates;
  ASSERT_TRUE(pruned);
  EXPECT_EQ(pruned->prune, PruneKind::kStochastic);
  EXPECT_EQ(pruned->sparsity, 0.85);
  EXPECT_EQ(pruned->bits, 0);
  const auto both = parse_gradient_choice("prune:0.9+fp4").gates;
  ASSERT_TRUE(both);
  EXPECT_EQ(both->sparsity, 0.9);
  EXPECT_EQ(both->bits, 4);
  EXPECT_EQ(both->rounding, Rounding::kStochastic);
  EXPECT_EQ(both->underflow, Underflow::kStochastic);
}

TEST(GradientChoice, ReadsASplit) {
  const auto format = parse_gradient_choice("1-3-2").gates;
  ASSERT_TRUE(format && format->format);
  EXPECT_EQ(format->format->name(), "1-3-2");
  EXPECT_EQ(format->bits, 6);
  const auto both = parse_gradient_choice("prune:0.9+1-3-0").gates;
  ASSERT_TRUE(both && both->format);
  EXPECT_EQ(both->sparsity, 0.9);
  EXPECT_EQ(both->bits, 4);
}

TEST(GradientChoice, ReadsTheSparsitiesOfTwoProducts) {
  const GradientChoice choice = parse_gradient_choice("sparse:0.95:0");
  EXPECT_FALSE(choice.gates);
  ASSERT_TRUE(choice.sparse);
  EXPECT_EQ(choice.sparse->weight, 0.95);
  EXPECT_EQ(choice.sparse->input, 0);
}

TEST(GradientChoice, RefusesTheRest) {
  for (const char* text : {"",
                           "fp",
                           "fp1",
                           "fp9",
                           "fp6x",
                           "1-",
                           "1-0-3",
                           "1-3-2x",
                           "2-3-2",
                           "fp-6",
                           "FP6",
                           "prune",
                           "prune:",
                           "prune:1",
                           "prune:-0.1",
                           "prune:nan",
                           "prune:0.8+",
                           "prune:0.8+none",
                           "prune:0.8 ",
                           "fp6+prune:0.8",
                           "none+fp6",
                           "sparse:",
                           "sparse:0.9",
                           "sparse:0.9:",
                           "sparse:1:0",
                           "sparse:0.9:-1",
                           "sparse:0.9:0.5:0"})
    EXPECT_THROW(parse_gradient_choice(text), InvalidArgument) << text;
}

GradientOptions with(GateTexts given) { return {.gate = gate_texts(std::move(given))}; }

GradientChoice refined(const char* gradients, const GradientOptions& options) {
  GradientChoice choice = parse_gradient_choice(gradients);
  refine(choice, options);
  return choice;
}

TEST(GradientOptions, DefaultsChangeNothing) {
  const GradientChoice choice = refined("prune:0.9+fp4", {});
  EXPECT_EQ(choice.gates->prune, PruneKind::kStochastic);
  EXPECT_EQ(choice.gates->method, ThresholdMethod::kEmpirical);
  EXPECT_EQ(choice.gates->scale_method, ScaleMethod::kMax);
  EXPECT_EQ(choice.gates->fixed_scale, 0);
  EXPECT_EQ(choice.refresh_every, 1);
  EXPECT_EQ(choice.growth_interval, 0);
  EXPECT_EQ(choice.min_elements, 4096);
}

TEST(GradientOptions, ScalesOfLayersAndOfAll) {
  EXPECT_EQ(refined("1-3-2", with({{"scale", "error"}})).gates->scale_method, ScaleMethod::kError);
  // Quantizing at loss scale L is a grid of scale 1 / L.
  EXPECT_EQ(refined("fp4", with({{"scale", "static:2^13"}})).gates->fixed_scale, 1.0 / 8192);
  EXPECT_EQ(refined("fp4", with({{"scale", "static:65536"}})).gates->fixed_scale, 1.0 / 65536);
  const GradientChoice dynamic = refined("fp6", with({{"scale", "dynamic:2^16:500"}}));
  EXPECT_EQ(dynamic.gates->fixed_scale, 1.0 / 65536);
  EXPECT_EQ(dynamic.growth_interval, 500);
  EXPECT_EQ(refined("fp6", with({{"scale", "dynamic:2^16"}})).growth_interval, 2000);
}

TEST(GradientOptions, BaselinesAndFreshness) {
  const GradientChoice choice = refined(
      "prune:0.9", with({{"threshold", "normal"}, {"prune", "topk"}, {"refresh", "epoch"}}));
  EXPECT_EQ(choice.gates->prune, PruneKind::kTopK);
  EXPECT_EQ(choice.gates->method, ThresholdMethod::kEmpirical);  // top-k has none
  EXPECT_EQ(choice.refresh_every, 0);
  EXPECT_EQ(refined("prune:0.9", with({{"threshold", "normal"}})).gates->method,
            ThresholdMethod::kNormal);
  const GradientChoice rounded = refined("fp4", with({{"split", "lognormal"},
                                                      {"rounding", "nearest"},
                                                      {"underflow", "zero"},
                                                      {"refresh", "50"}}));
  EXPECT_EQ(rounded.gates->prune, PruneKind::kNone);  // nothing is pruned that was not asked for
  EXPECT_EQ(rounded.gates->split, SplitMethod::kLognormal);
  EXPECT_EQ(rounded.gates->rounding, Rounding::kNearest);
  EXPECT_EQ(rounded.gates->underflow, Underflow::kZero);
  EXPECT_EQ(rounded.refresh_every, 50);
  const GradientChoice sparse = refined(
      "sparse:0.9:0.5", {.gate = gate_texts({{"threshold", "lognormal"}}), .sparse_way = "always"});
  EXPECT_EQ(sparse.sparse_method, ThresholdMethod::kLognormal);
  EXPECT_TRUE(sparse.always_sparse);
}

TEST(GradientOptions, Allocations) {
  const AllocationChoice allocation =
      refined("prune:0.85", {.gate = gate_texts({{"allocation", "targets"}}),
                             .targets = {"linear=0.95", "stage1.conv=1"},
                             .cap = 0.9})
          .allocation;
  EXPECT_EQ(allocation.objective, AllocationObjective::kTargets);
  EXPECT_EQ(allocation.cap, 0.9);
  ASSERT_EQ(allocation.targets.size(), 2u);
  EXPECT_EQ(allocation.targets[1], (std::pair<std::string, double>("stage1.conv", 1)));
}

TEST(GradientOptions, RefusesTheRest) {
  for (const char* scale :
       {"", "maximum", "static", "static:", "static:0", "static:-1", "static:2^", "static:2^999",
        "dynamic:", "dynamic:2^16:", "dynamic:2^16:0", "dynamic:2^16:1.5"})
    EXPECT_THROW(refined("fp4", with({{"scale", scale}})), InvalidArgument) << scale;
  for (const char* refresh : {"", "0", "-1", "1.5", "epochs"})
    EXPECT_THROW(refined("none", with({{"refresh", refresh}})), InvalidArgument) << refresh;
  for (const char* target : {"", "a", "=0.5", "a=", "a=0", "a=1.5", "a=b"})
    EXPECT_THROW(
        refined("none", {.gate = gate_texts({{"allocation", "targets"}}), .targets = {target}}),
        InvalidArgument)
        << target;
  EXPECT_THROW(refined("none", with({{"allocation", "targets"}})), InvalidArgument);
  EXPECT_THROW(refined("none", {.targets = {"a=0.5"}}), InvalidArgument);  // uniform
  EXPECT_THROW(refined("none", with({{"threshold", "mean"}, {"allocation", "min_cosine"}})),
               InvalidArgument);
  EXPECT_THROW(refined("none", {.cap = 0}), InvalidArgument);
  EXPECT_THROW(refined("none", with({{"prune", "none"}})), InvalidArgument);
  EXPECT_THROW(refined("sparse:0.9:0", with({{"prune", "topk"}})), InvalidArgument);
  EXPECT_THROW(refined("none", {.sparse_way = "never"}), InvalidArgument);
}

// An option is for all runs, and one must have a use for it.
TEST(GradientOptions, RefusesWhatHasNoEffect) {
  const auto check = [](std::initializer_list<const char*> runs, const GradientOptions& options) {
    std::vector<GradientChoice> choices;
    for (const char* run : runs) choices.push_back(refined(run, options));
    check_effects(choices, options);
  };
  for (const GradientOptions& options : {with({{"prune", "topk"}}), with({{"threshold", "normal"}}),
                                         with({{"allocation", "min_cosine"}})}) {
    EXPECT_THROW(check({"none", "fp4"}, options), InvalidArgument);
    EXPECT_NO_THROW(check({"fp4", "prune:0.9"}, options));
  }
  EXPECT_THROW(check({"prune:0.9"}, with({{"threshold", "normal"}, {"prune", "topk"}})),
               InvalidArgument);
  EXPECT_THROW(check({"prune:0.9"}, {.cap = 0.5}), InvalidArgument);
  for (const GradientOptions& options :
       {with({{"split", "normal"}}), with({{"scale", "error"}}), with({{"rounding", "nearest"}}),
        with({{"underflow", "zero"}})}) {
    EXPECT_THROW(check({"none", "prune:0.9", "sparse:0.9:0"}, options), InvalidArgument);
    EXPECT_NO_THROW(check({"prune:0.9", "fp4"}, options));
  }
  EXPECT_THROW(check({"1-3-2"}, with({{"split", "normal"}})), InvalidArgument);
  for (const GradientOptions& options :
       {with({{"refresh", "epoch"}}), with({{"warmup", "3"}}), with({{"min_elements", "1"}})}) {
    EXPECT_THROW(check({"none"}, options), InvalidArgument);
    EXPECT_NO_THROW(check({"none", "fp4"}, options));
  }
  EXPECT_THROW(check({"prune:0.9"}, {.sparse_way = "always"}), InvalidArgument);
  EXPECT_NO_THROW(check({"sparse:0.9:0"}, {.sparse_way = "always"}));
}

}  // namespace
}  // namespace slimgrad::trainer
