// TensorStats (tensor_stats.h) of an array, in one pass; and the laws (distribution.h) that fit it.
//
// The result is a function of the values and their order alone, to the bit: never of how the work
// was split, and the same on every CPU. Any thread may call measure().
//
// Up to kFullHistogramValues values the histogram counts everything; of larger arrays it is a
// sample that is spread over the whole array by a fixed pseudo-random rule, and everything else in
// TensorStats still sees every value. What sampling costs is derived in
// src/kernels/measure/histogram.h.
//
// Accuracy. Counts and max_abs are exact; mean_abs and mean_square are good to a relative 2e-6 at
// worst. A logarithm is off by at most 2.5e-7 + 1.2e-7 of its distance from a typical one, and so
// is log_mean; log_std is off by no more than twice that. Float32 and bfloat16 subnormals count at
// their value even in a thread that flushes subnormals to zero.
#ifndef SLIMGRAD_MEASURE_H_
#define SLIMGRAD_MEASURE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <slimgrad/distribution.h>
#include <slimgrad/half.h>
#include <slimgrad/tensor_stats.h>

namespace slimgrad {

// The histogram of a longer array is a sample of an eighth of it: at least 2^18 values, so that a
// fraction read off it has a standard error of at most 0.001.
inline constexpr std::size_t kFullHistogramValues = std::size_t{1} << 21;

TensorStats measure(std::span<const float> values);
TensorStats measure(std::span<const BFloat16Bits> values);
TensorStats measure(std::span<const Float16Bits> values);

// The same in pieces, for callers with threads of their own:
//
//   Measurement measurement(values);
//   parallel_for(0, measurement.num_chunks(), [&](first, last) { measurement.run(first, last); });
//   TensorStats stats = measurement.finish();
//
// The values must outlive the measurement. It holds 64 bytes per chunk and one histogram.
class Measurement {
 public:
  static constexpr std::size_t kChunkValues = std::size_t{1} << 16;

  explicit Measurement(std::span<const float> values);
  explicit Measurement(std::span<const BFloat16Bits> values);
  explicit Measurement(std::span<const Float16Bits> values);
  ~Measurement();

  std::size_t num_chunks() const;

  // Reads chunks first to last - 1. Disjoint ranges may run concurrently.
  // REQUIRES: first <= last <= num_chunks(), and no chunk is run twice.
  void run(std::size_t first, std::size_t last) noexcept;

  // REQUIRES: every chunk has been run, and the runs happened before this call.
  TensorStats finish() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// ---- which law the values follow ----------------------------------------------------------------
//
// Maximum-likelihood fits, and how good they are. Zeros and non-finite values are left out: a
// ReLU's zeros are a point mass that no density describes. All functions are pure and may run
// concurrently.

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

#endif  // SLIMGRAD_MEASURE_H_
