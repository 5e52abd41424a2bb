// Maximum-likelihood fits of a tensor, and how good they are.
//
// Zeros and non-finite values are left out everywhere: a ReLU's zeros are a point mass that no
// density describes. All functions are pure and may run concurrently.
#ifndef SLIMGRAD_FIT_H_
#define SLIMGRAD_FIT_H_

#include <cstdint>
#include <span>
#include <vector>

#include <slimgrad/distribution.h>

namespace slimgrad {

// The finite non-zero values of a tensor, sorted by magnitude, for several fits and distances of
// the same data. Sorting is the expensive part; share it.
class Sample {
 public:
  // Throws InvalidArgument if no finite non-zero value is left.
  explicit Sample(std::span<const float> values);
  explicit Sample(std::span<const double> values);

  std::span<const double> magnitudes() const { return magnitudes_; }  // ascending

 private:
  std::vector<double> magnitudes_;
};

// The maximum-likelihood member of the family. Throws InvalidArgument where none exists (all
// magnitudes equal, for a family with a spread).
Distribution fit(std::span<const float> values, Family family);
Distribution fit(const Sample& sample, Family family);

// Kolmogorov-Smirnov distance: the largest difference between the empirical cdf of |x| and the
// distribution's.
double ks_distance(const Sample& sample, const Distribution& distribution);

// Wasserstein distance of order 1 or 2 between |x| and the distribution of the magnitude.
// Infinity where the moment does not exist (Cauchy).
double wasserstein_distance(const Sample& sample, const Distribution& distribution, int order);

}  // namespace slimgrad

#endif  // SLIMGRAD_FIT_H_
