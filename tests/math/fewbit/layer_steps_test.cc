#include <gtest/gtest.h>
#include <slimgrad/steps.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace slimgrad {
namespace {

// The level of x, as a layer finds it: in float32, by counting the borders below.
double level_at(const StepTable& table, float x) {
  const float at = table.even ? std::fabs(x) : x;
  const auto above = [&](double border) { return !(at <= static_cast<float>(border)); };
  const auto code = std::count_if(table.borders.begin(), table.borders.end(), above);
  return table.levels[static_cast<std::size_t>(code)];
}

float next(float x) { return std::nextafter(x, std::numeric_limits<float>::infinity()); }
float previous(float x) { return std::nextafter(x, -std::numeric_limits<float>::infinity()); }

// torch's derivatives at, just before and just behind every jump.
TEST(LayerSteps, ExactOnBothSidesOfEveryJump) {
  const StepTable relu = layer_steps("relu", {}, 3);
  EXPECT_EQ(relu.levels.size(), 2u);
  EXPECT_EQ(level_at(relu, 0.0f), 0);
  EXPECT_EQ(level_at(relu, next(0.0f)), 1);

  const StepTable leaky = layer_steps("leaky_relu", {{"negative_slope", 0.2}}, 3);
  EXPECT_EQ(level_at(leaky, 0.0f), 0.2);
  EXPECT_EQ(level_at(leaky, 1.0f), 1);

  const StepTable threshold = layer_steps("threshold", {{"threshold", 0.5}}, 3);
  EXPECT_EQ(level_at(threshold, 0.5f), 0);
  EXPECT_EQ(level_at(threshold, next(0.5f)), 1);

  const StepTable relu6 = layer_steps("relu6", {}, 3);
  EXPECT_EQ(relu6.levels.size(), 4u);
  for (const float x : {-1.0f, 0.0f, 6.0f, 7.0f}) EXPECT_EQ(level_at(relu6, x), 0) << x;
  for (const float x : {next(0.0f), previous(6.0f)}) EXPECT_EQ(level_at(relu6, x), 1) << x;

  // NaN is above all borders, where torch lets the gradient through: always in ReLU and threshold,
  // in relu6 it depends on the element's place in a vector.
  for (const StepTable& open : {relu, threshold, relu6}) EXPECT_EQ(level_at(open, NAN), 1);

  const StepTable hardtanh = layer_steps("hardtanh", {}, 3);
  EXPECT_TRUE(hardtanh.even);
  for (const float x : {-1.0f, 1.0f, 2.0f}) EXPECT_EQ(level_at(hardtanh, x), 0) << x;
  for (const float x : {next(-1.0f), 0.0f, previous(1.0f)}) EXPECT_EQ(level_at(hardtanh, x), 1);

  const StepTable uneven = layer_steps("hardtanh", {{"min_val", -2}, {"max_val", 1}}, 3);
  for (const float x : {-2.0f, 1.0f}) EXPECT_EQ(level_at(uneven, x), 0) << x;
  for (const float x : {next(-2.0f), previous(1.0f)}) EXPECT_EQ(level_at(uneven, x), 1) << x;

  const StepTable hardsigmoid = layer_steps("hardsigmoid", {}, 3);
  EXPECT_EQ(level_at(hardsigmoid, 3.0f), 0);
  EXPECT_EQ(level_at(hardsigmoid, previous(3.0f)), 1.0 / 6);

  for (const char* name : {"hardshrink", "softshrink"}) {
    const StepTable shrink = layer_steps(name, {{"lambd", 0.25}}, 3);
    for (const float x : {-0.25f, 0.0f, 0.25f}) EXPECT_EQ(level_at(shrink, x), 0) << x;
    for (const float x : {-1.0f, next(0.25f)}) EXPECT_EQ(level_at(shrink, x), 1) << x;
  }
}

TEST(LayerSteps, OtherwiseOptimal) {
  const StepTable layer = layer_steps("elu", {{"alpha", 0.5}}, 2, -5, 5, StepWeight::kUniform);
  const StepTable optimal =
      steps(activation_target("elu", {{"alpha", 0.5}}), 2, -5, 5, StepWeight::kUniform);
  EXPECT_EQ(layer.borders, optimal.borders);
  EXPECT_EQ(layer.levels, optimal.levels);
  EXPECT_EQ(layer_steps("gelu", {}, 3).levels,
            steps("gelu", 3, -10, 10, StepWeight::kNormal).levels);
}

}  // namespace
}  // namespace slimgrad
