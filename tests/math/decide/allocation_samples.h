// What the tests of allocation share.
#ifndef SLIMGRAD_TESTS_MATH_ALLOCATION_SAMPLES_H_
#define SLIMGRAD_TESTS_MATH_ALLOCATION_SAMPLES_H_

#include <vector>

#include <slimgrad/threshold.h>

#include "golden.h"

namespace slimgrad {

inline constexpr auto kLognormal = ThresholdMethod::kLognormal;

inline std::vector<TensorStats> layers_of(const nlohmann::json& golden_case) {
  std::vector<TensorStats> layers;
  for (std::size_t i = 0; i < golden_case["n"].size(); ++i)
    layers.push_back(lognormal_stats(golden_case["mu"][i], golden_case["sigma"][i],
                                     golden_case["s0"][i],
                                     golden_case["n"][i].get<std::uint64_t>()));
  return layers;
}

// sum n_i S_i / sum n_i
inline double total_sparsity(const std::vector<TensorStats>& layers,
                             const std::vector<LayerAllocation>& allocation) {
  double zeros = 0, count = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    zeros += static_cast<double>(layers[i].count) * allocation[i].sparsity;
    count += static_cast<double>(layers[i].count);
  }
  return zeros / count;
}

}  // namespace slimgrad

#endif  // SLIMGRAD_TESTS_MATH_ALLOCATION_SAMPLES_H_
