// Brute force over a small tensor, in double: the oracle for everything that works from statistics.
#ifndef SLIMGRAD_TESTS_STATS_OF_H_
#define SLIMGRAD_TESTS_STATS_OF_H_

#include <algorithm>
#include <cmath>
#include <vector>

#include <slimgrad/tensor_stats.h>

namespace slimgrad {

inline TensorStats stats_of(const std::vector<float>& tensor) {
  TensorStats stats;
  stats.count = tensor.size();
  double log_sum = 0, log_square = 0;
  for (const float x : tensor) {
    if (!std::isfinite(x)) {
      ++stats.nonfinite;
      continue;
    }
    const double magnitude = std::abs(static_cast<double>(x));
    stats.max_abs = std::max(stats.max_abs, magnitude);
    stats.mean_abs += magnitude;
    stats.mean_square += magnitude * magnitude;
    if (x == 0) {
      ++stats.zeros;
      continue;
    }
    ++stats.histogram.counts[LogHistogram::bin_of(x)];
    log_sum += std::log(magnitude);
    log_square += std::log(magnitude) * std::log(magnitude);
  }
  const double finite = static_cast<double>(stats.num_finite());
  const double nonzero = static_cast<double>(stats.num_nonzero());
  if (finite > 0) {
    stats.mean_abs /= finite;
    stats.mean_square /= finite;
    stats.zero_fraction = static_cast<double>(stats.zeros) / finite;
  }
  if (nonzero > 0) {
    stats.log_mean = log_sum / nonzero;
    stats.log_std =
        std::sqrt(std::max(0.0, log_square / nonzero - stats.log_mean * stats.log_mean));
  }
  return stats;
}

// The expected fraction of zeros after stochastic pruning, straight from its definition.
inline double exact_sparsity(const std::vector<float>& tensor, double alpha) {
  double zeros = 0;
  for (const float x : tensor) zeros += x == 0 ? 1 : std::max(0.0, 1 - std::abs(x) / alpha);
  return zeros / static_cast<double>(tensor.size());
}

// 1 / sqrt(1 + MSE / E x^2), with MSE = E[|x| (alpha - |x|)^+].
inline double exact_cosine(const std::vector<float>& tensor, double alpha) {
  double error = 0, square = 0;
  for (const float x : tensor) {
    const double magnitude = std::abs(static_cast<double>(x));
    error += magnitude * std::max(0.0, alpha - magnitude);
    square += magnitude * magnitude;
  }
  return 1 / std::sqrt(1 + error / square);
}

}  // namespace slimgrad

#endif  // SLIMGRAD_TESTS_STATS_OF_H_
