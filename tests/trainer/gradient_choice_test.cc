#include "trainer/gradient_choice.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

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

}  // namespace
}  // namespace slimgrad::trainer
