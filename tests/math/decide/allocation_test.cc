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

TEST(Allocation, Golden) {
  const std::vector<std::pair<std::string, AllocationObjective>> objectives = {
      {"uniform", AllocationObjective::kUniform},
      {"a_maxmin_cos", AllocationObjective::kMinCosine},
      {"b_mean_cos", AllocationObjective::kMeanCosine},
      {"c_mean_nmse", AllocationObjective::kMeanError},
      {"d_total_sq_err", AllocationObjective::kTotalError}};
  int compared = 0;
  for (const auto& row : golden("allocation.json")["cases"]) {
    if (!row["k"].is_null()) continue;  // The truncated law is not ours.
    const auto layers = layers_of(row);
    for (const auto& [key, objective] : objectives) {
      const auto found = allocate(layers, row["S_target"], objective, kLognormal, 1.0);
      for (std::size_t i = 0; i < layers.size(); ++i) {
        SCOPED_TRACE(testing::Message() << row["name"] << ' ' << key << " layer " << i);
        EXPECT_NEAR(found[i].sparsity, row[key]["S_layer"][i], 1e-10);
        EXPECT_NEAR(found[i].cosine, row[key]["cos"][i], 1e-10);
        EXPECT_NEAR(found[i].threshold / row[key]["alpha"][i].get<double>(), 1, 1e-8);
        ++compared;
      }
      if (objective != AllocationObjective::kUniform) {
        EXPECT_NEAR(total_sparsity(layers, found), row["S_target"], 1e-12);
      }
    }
  }
  EXPECT_EQ(compared, (3 + 4 + 5) * 5);
}

// What each objective promises, as a number to be maximised.
double merit(const std::vector<TensorStats>& layers, const std::vector<double>& sparsities,
             AllocationObjective objective) {
  double worst = 1, cosines = 0, errors = 0, squares = 0, count = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const double n = static_cast<double>(layers[i].count);
    const double alpha = threshold(layers[i], sparsities[i], kLognormal).value;
    const double cosine = expected_cosine(layers[i], alpha, kLognormal);
    const double nmse = 1 / (cosine * cosine) - 1;
    const double log_square = 2 * layers[i].log_mean + 2 * layers[i].log_std * layers[i].log_std;
    worst = std::min(worst, cosine);
    cosines += n * cosine;
    errors += n * nmse;
    squares += n * nmse * (1 - layers[i].zero_fraction) * std::exp(log_square);
    count += n;
  }
  switch (objective) {
    case AllocationObjective::kMinCosine:
      return worst;
    case AllocationObjective::kMeanCosine:
      return cosines / count;
    case AllocationObjective::kMeanError:
      return -errors / count;
    default:
      return -squares / count;
  }
}

TEST(Allocation, NoExchangeBetweenTwoLayersIsBetterUnderACap) {
  const double cap = 0.93;
  const std::vector<TensorStats> layers = {
      lognormal_stats(-9, 1.2, 0.0, 1000), lognormal_stats(-8, 1.8, 0.3, 2000),
      lognormal_stats(-10, 2.4, 0.5, 4000), lognormal_stats(-5, 0.8, 0.1, 500)};
  for (const auto objective : {AllocationObjective::kMinCosine, AllocationObjective::kMeanCosine,
                               AllocationObjective::kMeanError, AllocationObjective::kTotalError}) {
    const auto found = allocate(layers, 0.85, objective, kLognormal, cap);
    EXPECT_NEAR(total_sparsity(layers, found), 0.85, 1e-12);
    EXPECT_TRUE(found[2].at_cap);
    std::vector<double> best;
    for (const auto& layer : found) {
      EXPECT_LE(layer.sparsity, cap + 1e-12);
      best.push_back(layer.sparsity);
    }
    const double reached = merit(layers, best, objective);
    for (std::size_t i = 0; i < layers.size(); ++i)
      for (std::size_t j = 0; j < layers.size(); ++j) {
        if (i == j) continue;
        auto moved = best;  // A few zeros from layer j to layer i.
        const double zeros = 2;
        moved[i] += zeros / static_cast<double>(layers[i].count);
        moved[j] -= zeros / static_cast<double>(layers[j].count);
        if (moved[i] > cap || moved[j] < layers[j].zero_fraction) continue;
        EXPECT_LE(merit(layers, moved, objective), reached + 1e-12)
            << objective_name(objective) << ' ' << j << "->" << i;
      }
  }
}

TEST(Allocation, UniformIsFarWorseWhenSpreadsDiffer) {
  const auto layers = layers_of(golden("allocation.json")["cases"][1]);
  const auto worst = [&](AllocationObjective objective) {
    double least = 1;
    for (const auto& layer : allocate(layers, 0.85, objective, kLognormal, 1.0))
      least = std::min(least, layer.cosine);
    return least;
  };
  EXPECT_LT(worst(AllocationObjective::kUniform), 0.6);
  EXPECT_GT(worst(AllocationObjective::kMinCosine), 0.98);
}

TEST(Allocation, WorksOnMeasuredLayers) {
  std::mt19937_64 engine(3);
  std::normal_distribution<double> normal;
  std::vector<std::vector<float>> tensors(3);
  for (int i = 0; i < 50000; ++i) {
    const double z = normal(engine);
    tensors[0].push_back(static_cast<float>(std::exp(0.7 * z)));
    tensors[1].push_back(static_cast<float>(z));
    tensors[2].push_back(static_cast<float>(i % 2 ? 0.0 : std::exp(2.5 * z)));
  }
  std::vector<TensorStats> layers;
  for (const auto& tensor : tensors) layers.push_back(stats_of(tensor));
  const auto found = allocate(layers, 0.8, AllocationObjective::kMinCosine,
                              ThresholdMethod::kEmpirical, kDefaultSparsityCap);
  double zeros = 0, counts = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_NEAR(exact_cosine(tensors[i], found[i].threshold), found[i].cosine, 1e-3);
    zeros +=
        exact_sparsity(tensors[i], found[i].threshold) * static_cast<double>(tensors[i].size());
    counts += static_cast<double>(tensors[i].size());
  }
  EXPECT_NEAR(zeros / counts, 0.8, 1e-3);
}

TEST(Allocation, SaysWhatIsReachable) {
  const std::vector<TensorStats> layers = {lognormal_stats(0, 1, 0.5, 100),
                                           lognormal_stats(0, 2, 0.7, 300)};
  const auto run = [&](double sparsity, double cap = 0.9) {
    return allocate(layers, sparsity, AllocationObjective::kMinCosine, kLognormal, cap);
  };
  try {
    run(0.6);
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("0.650000"), std::string::npos) << error.what();
  }
  EXPECT_THROW(run(0.95), InvalidArgument);
  EXPECT_NEAR(run(0.9)[0].sparsity, 0.9, 1e-9);   // both at the cap
  EXPECT_NEAR(run(0.65)[0].sparsity, 0.5, 1e-9);  // nothing to do
  EXPECT_THROW(run(0.8, 0), InvalidArgument);
  EXPECT_THROW(run(0.8, 1.1), InvalidArgument);
  EXPECT_THROW(run(1), InvalidArgument);
  EXPECT_THROW(allocate({}, 0.5, AllocationObjective::kUniform, kLognormal), InvalidArgument);
  EXPECT_THROW(parse_allocation_objective("best"), InvalidArgument);
}

}  // namespace
}  // namespace slimgrad
