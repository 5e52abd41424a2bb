// TensorStats (tensor_stats.h) of an array, in one pass.
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

}  // namespace slimgrad

#endif  // SLIMGRAD_MEASURE_H_
