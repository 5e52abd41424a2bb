// TensorStats as numbers in a row, the form in which it passes through an op, lives in a module's
// state and leaves a kernel of a device: the nine numbers in the order of the struct, then the
// histogram's counts. Counts up to 2^53 are exact.
#ifndef SLIMGRAD_FORMATS_STATS_FIELDS_H_
#define SLIMGRAD_FORMATS_STATS_FIELDS_H_

#include <cstdint>

#include <slimgrad/tensor_stats.h>

namespace slimgrad {

enum StatsField : std::int64_t {
  kCountField,
  kZerosField,
  kNonfiniteField,
  kZeroFractionField,
  kLogMeanField,
  kLogStdField,
  kMaxAbsField,
  kMeanAbsField,
  kMeanSquareField,
  kStatsFields,  // how many there are, and where the histogram begins
};
inline constexpr std::int64_t kStatsTensorSize = kStatsFields + LogHistogram::kNumBins;

// TensorStats without its histogram, which no thread of a device has room for.
struct StatsNumbers {
  std::uint64_t count = 0, zeros = 0, nonfinite = 0;
  double zero_fraction = 0, log_mean = 0, log_std = 0, max_abs = 0, mean_abs = 0, mean_square = 0;

  constexpr std::uint64_t num_finite() const { return count - nonfinite; }
  constexpr std::uint64_t num_nonzero() const { return count - nonfinite - zeros; }
};

// The nine of `stats`, which has the names of TensorStats.
template <class Stats>
constexpr void write_numbers(const Stats& stats, double* fields) {
  fields[kCountField] = static_cast<double>(stats.count);
  fields[kZerosField] = static_cast<double>(stats.zeros);
  fields[kNonfiniteField] = static_cast<double>(stats.nonfinite);
  fields[kZeroFractionField] = stats.zero_fraction;
  fields[kLogMeanField] = stats.log_mean;
  fields[kLogStdField] = stats.log_std;
  fields[kMaxAbsField] = stats.max_abs;
  fields[kMeanAbsField] = stats.mean_abs;
  fields[kMeanSquareField] = stats.mean_square;
}

}  // namespace slimgrad

#endif  // SLIMGRAD_FORMATS_STATS_FIELDS_H_
