#include <slimgrad/threshold.h>

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include <slimgrad/error.h>

#include "math/decide/allocation_samples.h"
#include "stats_of.h"

namespace slimgrad {
namespace {

TEST(AllocationTargets, ComeFirstAndTheRestSharesTheBudget) {
  const auto layers = layers_of(golden("allocation.json")["cases"][0]);
  const CosineTarget target{.layer = 0, .cosine = 0.9};
  for (const auto objective : {AllocationObjective::kMinCosine, AllocationObjective::kTargets}) {
    const auto found = allocate(layers, 0.7, objective, kLognormal, 0.98, std::span(&target, 1));
    EXPECT_NEAR(found[0].cosine, 0.9, 1e-10);
    EXPECT_NEAR(found[1].cosine, found[2].cosine, 1e-10);
    EXPECT_NEAR(total_sparsity(layers, found), 0.7, 1e-12);
  }
}

// What is best over all layers is best over some of them, once the others have what they had.
TEST(AllocationTargets, LeaveTheGoldenOptimumWhereItIs) {
  const std::vector<std::pair<std::string, AllocationObjective>> objectives = {
      {"uniform", AllocationObjective::kUniform},
      {"a_maxmin_cos", AllocationObjective::kMinCosine},
      {"a_maxmin_cos", AllocationObjective::kTargets},
      {"b_mean_cos", AllocationObjective::kMeanCosine},
      {"c_mean_nmse", AllocationObjective::kMeanError},
      {"d_total_sq_err", AllocationObjective::kTotalError}};
  const nlohmann::json cases = golden("allocation.json")["cases"];
  for (const auto& row : {cases[0], cases[1]}) {
    const auto layers = layers_of(row);
    for (const auto& [key, objective] : objectives)
      for (std::size_t fixed = 0; fixed < layers.size(); ++fixed) {
        const CosineTarget target{.layer = fixed, .cosine = row[key]["cos"][fixed]};
        const auto found =
            allocate(layers, row["S_target"], objective, kLognormal, 1.0, std::span(&target, 1));
        for (std::size_t i = 0; i < layers.size(); ++i) {
          SCOPED_TRACE(testing::Message() << key << " target " << fixed << " layer " << i);
          EXPECT_NEAR(found[i].sparsity, row[key]["S_layer"][i], 1e-8);
        }
      }
  }
}

// The largest alpha below which a tensor keeps the cosine, straight from its definition.
double alpha_by_bisection(const std::vector<float>& tensor, double cosine) {
  double low = 0, high = 1e6;
  for (int i = 0; i < 100; ++i) {
    const double middle = (low + high) / 2;
    (exact_cosine(tensor, middle) > cosine ? low : high) = middle;
  }
  return low;
}

TEST(AllocationTargets, AgreeWithBruteForceOnTensors) {
  std::mt19937_64 engine(5);
  std::normal_distribution<double> normal;
  std::vector<std::vector<float>> tensors(3);
  for (int i = 0; i < 6000; ++i) {
    tensors[0].push_back(static_cast<float>(normal(engine)));
    if (i % 2 == 0) tensors[1].push_back(static_cast<float>(std::exp(0.8 * normal(engine))));
    if (i % 3 == 0) tensors[2].push_back(static_cast<float>(std::exp(1.6 * normal(engine))));
  }
  std::vector<TensorStats> layers;
  for (const auto& tensor : tensors) layers.push_back(stats_of(tensor));
  const CosineTarget target{.layer = 0, .cosine = 0.9};
  const auto found = allocate(layers, 0.6, AllocationObjective::kTargets,
                              ThresholdMethod::kEmpirical, 0.98, std::span(&target, 1));

  const double fixed = 6000 * exact_sparsity(tensors[0], alpha_by_bisection(tensors[0], 0.9));
  EXPECT_NEAR(found[0].sparsity, fixed / 6000, 1e-3);
  // Every split of the rest between the other two, by the cosine of the first of them.
  double best = 0, best_sparsity = 0;
  for (double cosine = 0.5; cosine < 1; cosine += 0.002) {
    const double alpha = alpha_by_bisection(tensors[1], cosine);
    const double zeros = 3000 * exact_sparsity(tensors[1], alpha);
    const double sparsity = (0.6 * 11000 - fixed - zeros) / 2000;
    if (sparsity < 0 || sparsity > 0.98) continue;
    double low = 0, high = 1e6;
    for (int i = 0; i < 100; ++i) {
      const double middle = (low + high) / 2;
      (exact_sparsity(tensors[2], middle) < sparsity ? low : high) = middle;
    }
    const double worst = std::min(cosine, exact_cosine(tensors[2], low));
    if (worst > best) best = worst, best_sparsity = sparsity;
  }
  EXPECT_NEAR(std::min(found[1].cosine, found[2].cosine), best, 4e-3);  // the grid's step, twice
  EXPECT_NEAR(found[2].sparsity, best_sparsity, 1e-2);
}

TEST(AllocationTargets, UniformGivesTheRestOneSparsity) {
  const std::vector<TensorStats> layers = {
      lognormal_stats(0, 1, 0, 1000), lognormal_stats(0, 1.5, 0, 3000),
      lognormal_stats(0, 2, 0, 500), lognormal_stats(0, 2, 0.95, 500)};
  const CosineTarget target{.layer = 0, .cosine = 1};
  const auto found =
      allocate(layers, 0.6, AllocationObjective::kUniform, kLognormal, 0.98, std::span(&target, 1));
  EXPECT_EQ(found[0].sparsity, 0);
  EXPECT_EQ(found[0].threshold, 0);
  EXPECT_NEAR(found[3].sparsity, 0.95, 1e-12);  // the zeros that are there
  EXPECT_NEAR(found[1].sparsity, (0.6 * 5000 - 0.95 * 500) / 3500, 1e-10);
  EXPECT_NEAR(found[2].sparsity, found[1].sparsity, 1e-10);
}

TEST(AllocationTargets, SayWhatIsReachableBesideThem) {
  const std::vector<TensorStats> layers = {lognormal_stats(0, 1, 0, 600),
                                           lognormal_stats(0, 2, 0.25, 400)};
  const auto run = [&](double sparsity, std::vector<CosineTarget> targets,
                       OutOfReach out_of_reach = OutOfReach::kThrow) {
    return allocate(layers, sparsity, AllocationObjective::kTargets, kLognormal, 0.9, targets,
                    out_of_reach);
  };
  try {
    run(0.5, {{.layer = 0, .cosine = 1}});
    FAIL();
  } catch (const InvalidArgument& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("0.100000"), std::string::npos) << message;  // 0.25 * 400 / 1000
    EXPECT_NE(message.find("0.360000"), std::string::npos) << message;  // 0.9 * 400 / 1000
    EXPECT_NE(message.find("targets"), std::string::npos) << message;
  }
  const auto most = run(0.5, {{.layer = 0, .cosine = 1}}, OutOfReach::kNearest);
  EXPECT_EQ(most[0].sparsity, 0);
  EXPECT_NEAR(most[1].sparsity, 0.9, 1e-12);
  EXPECT_TRUE(most[1].at_cap);
  const auto least = run(0.05, {{.layer = 0, .cosine = 1}}, OutOfReach::kNearest);
  EXPECT_NEAR(least[1].sparsity, 0.25, 1e-12);
  // The cap comes before a target.
  const auto capped = run(0.7, {{.layer = 0, .cosine = 0.01}});
  EXPECT_TRUE(capped[0].at_cap);
  EXPECT_NEAR(capped[0].sparsity, 0.9, 1e-12);
  EXPECT_GT(capped[0].cosine, 0.01);
}

TEST(AllocationTargets, Misuse) {
  const std::vector<TensorStats> layers = {lognormal_stats(0, 1, 0, 600),
                                           lognormal_stats(0, 2, 0, 400)};
  const auto run = [&](std::vector<CosineTarget> targets) {
    return allocate(layers, 0.5, AllocationObjective::kTargets, kLognormal, 0.98, targets);
  };
  EXPECT_NO_THROW(run({{.layer = 0, .cosine = 0.9}}));
  EXPECT_THROW(run({}), InvalidArgument);
  EXPECT_THROW(run({{.layer = 2, .cosine = 0.9}}), InvalidArgument);
  EXPECT_THROW(run({{.layer = 0, .cosine = 0.9}, {.layer = 0, .cosine = 0.8}}), InvalidArgument);
  for (const double cosine : {0.0, -0.5, 1.5, std::nan("")})
    EXPECT_THROW(run({{.layer = 0, .cosine = cosine}}), InvalidArgument) << cosine;
}

}  // namespace
}  // namespace slimgrad
