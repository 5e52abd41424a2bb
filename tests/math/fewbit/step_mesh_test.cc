#include "math/fewbit/step_mesh.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include <slimgrad/steps.h>

#include "math/fewbit/polish.h"

namespace slimgrad {
namespace {

const std::function<double(double)> kOne = [](double) { return 1.0; };

TEST(StepMesh, MomentsOfAPolynomial) {
  // g = x^2, w = x on 0 .. 2: mass 2, int g w = 4, int g^2 w = 32/3.
  const WeightedTarget target{[](double x) { return x * x; }, [](double x) { return x; }};
  const Moments whole = target.integrate(0, 2);
  EXPECT_NEAR(whole.mass, 2, 1e-14);
  EXPECT_NEAR(whole.mean, 2, 1e-14);
  EXPECT_NEAR(whole.spread, 32.0 / 3 - 8, 1e-13);
  const Moments parts = merge(target.integrate(0, 0.7), target.integrate(0.7, 2));
  EXPECT_NEAR(parts.mass, whole.mass, 1e-14);
  EXPECT_NEAR(parts.mean, whole.mean, 1e-14);
  EXPECT_NEAR(parts.spread, whole.spread, 1e-13);
  EXPECT_EQ(merge({}, whole).spread, whole.spread);
  EXPECT_EQ(merge(whole, {}).mean, whole.mean);
}

TEST(StepMesh, JumpsAreToldFromKinks) {
  const StepTarget hardswish = activation_target("hardswish");  // jumps at -3 and 3, not at 0
  const StepMesh mesh = make_step_mesh({hardswish.derivative, kOne}, hardswish.breaks, -10, 10);
  std::vector<double> jumps;
  for (std::size_t i = 0; i < mesh.edges.size(); ++i)
    if (mesh.jumps[i]) jumps.push_back(mesh.edges[i]);
  EXPECT_EQ(jumps, (std::vector<double>{-3, 3}));
  const std::vector<std::size_t> nodes = choose_nodes(mesh, 50);
  for (const double jump : jumps)
    EXPECT_TRUE(std::any_of(nodes.begin(), nodes.end(),
                            [&](std::size_t node) { return mesh.edges[node] == jump; }));
}

TEST(StepMesh, SeesANarrowFeatureInAWideInterval) {
  // int sech^4 = 4/3 over the line, whatever the interval.
  const StepTarget tanh = activation_target("tanh");
  for (const double end : {20.0, 1e3, 1e5}) {
    const StepMesh mesh = make_step_mesh({tanh.derivative, kOne}, tanh.breaks, -end, end);
    Moments all;
    for (const Moments& panel : mesh.panels) all = merge(all, panel);
    EXPECT_NEAR(all.mass, 2 * end, 1e-12 * end);
    EXPECT_NEAR(all.spread + all.mass * all.mean * all.mean, 4.0 / 3, 1e-9) << end;
  }
}

TEST(Polish, ReachesTheOptimumFromAfar) {
  // f' = x on 0 .. 1: equal pieces, error 1 / (12 * 16).
  const WeightedTarget target{[](double x) { return x; }, kOne};
  const StepMesh mesh = make_step_mesh(target, {}, 0, 1);
  const PolishedSteps result = polish_steps(target, mesh, {0.1, 0.15, 0.9});
  EXPECT_NEAR(result.error, 1.0 / 192, 1e-14);
  EXPECT_NEAR(result.borders[1], 0.5, 1e-12);
}

TEST(Polish, LeavesAJumpWhereThatHelpsAndStaysWhereNot) {
  // SELU' jumps at 0 from 1.758 down to 1.051. One border: from 0 it moves left, because both
  // limits are above the mean of the two levels, (0.18 + 1.05) / 2.
  const StepTarget selu = activation_target("selu");
  const WeightedTarget target{selu.derivative, kOne};
  const StepMesh mesh = make_step_mesh(target, selu.breaks, -10, 10);
  const PolishedSteps moved = polish_steps(target, mesh, {0.0});
  EXPECT_LT(moved.borders[0], -0.5);
  EXPECT_NEAR(selu.derivative(moved.borders[0]), (moved.levels[0] + moved.levels[1]) / 2, 1e-12);
  // With two more on the left, the levels beside 0 are about 1.4 and 1.05, whose mean lies between
  // the limits: it stays. From inside the smooth part a border runs into the jump and stops there.
  for (const double start : {0.0, -0.05}) {
    const PolishedSteps stayed = polish_steps(target, mesh, {-2.5, -0.7, start});
    EXPECT_EQ(stayed.borders[2], 0.0);
    for (const std::size_t i : {0, 1})
      EXPECT_NEAR(selu.derivative(stayed.borders[i]), (stayed.levels[i] + stayed.levels[i + 1]) / 2,
                  1e-12);
  }
}

}  // namespace
}  // namespace slimgrad
