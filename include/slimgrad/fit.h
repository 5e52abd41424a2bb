// Maximum-likelihood fits of a tensor, and how good they are.
//
// Zeros and non-finite values are left out everywhere: a ReLU's zeros are a point mass that no
// density describes. All functions are pure and may run concurrently.
#ifndef SLIMGRAD_FIT_H_
#define SLIMGRAD_FIT_H_

#include <span>
#include <vector>

#include <slimgrad/distribution.h>

namespace slimgrad {

// The finite non-zero values of a tensor, sorted, for several fits and distances of the same data.
// Sorting is the expensive part; share it. 16 bytes per value.
class Sample {
 public:
  // Throws InvalidArgument if no finite non-zero value is left.
  explicit Sample(std::span<const float> values);
  explicit Sample(std::span<const double> values);

  std::span<const double> values() const { return values_; }          // ascending
  std::span<const double> magnitudes() const { return magnitudes_; }  // ascending

 private:
  void sort();

  std::vector<double> values_;
  std::vector<double> magnitudes_;
};

// The maximum-likelihood member of the family, location 0. Throws InvalidArgument where none
// exists: no finite non-zero value, or all magnitudes equal for the lognormal and the log-Laplace
// (whose spread would be zero) and the generalized normal (whose shape would be infinite). Other
// data that are flatter than any generalized normal get its largest shape, 128. Nothing is sorted;
// the cost is a few passes, for the generalized normal about two over large arrays.
Distribution fit(std::span<const float> values, Family family);
Distribution fit(const Sample& sample, Family family);

// Kolmogorov-Smirnov distance: the largest difference between the empirical cdf of |x| and the
// distribution's.
double ks_distance(const Sample& sample, const Distribution& distribution);

// Wasserstein distance of order 1 or 2, in the units of x: (int_0^1 |F^-1 - G^-1|^p)^(1/p), exact
// for the empirical step function. Between signed values and law for the symmetric families,
// between magnitudes for lognormal and log-Laplace. Infinity where the law has no such moment
// (Cauchy; log-Laplace with log_scale >= 1 for order 1, >= 1/2 for order 2) or it overflows. Throws
// InvalidArgument for other orders.
double wasserstein_distance(const Sample& sample, const Distribution& distribution, int order);

}  // namespace slimgrad

#endif  // SLIMGRAD_FIT_H_
