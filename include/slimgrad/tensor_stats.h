// What one pass over a tensor learns about it: enough to choose a format, a scale and a pruning
// threshold without touching the tensor again.
//
// Rules. Non-finite values are counted and enter nothing else. Zeros are a point mass of their own:
// they enter mean_abs and mean_square, never log_mean and log_std. Logarithms are natural.
// Plain data; measure.h fills it in.
#ifndef SLIMGRAD_TENSOR_STATS_H_
#define SLIMGRAD_TENSOR_STATS_H_

#include <array>
#include <bit>
#include <cstdint>

namespace slimgrad {

// Histogram of magnitudes, eight bins per octave. A bin is named by the exponent and the top three
// mantissa bits of the float32, so that binning is a shift: bin k holds the magnitudes from
// lower_edge(k) up to, but not including, lower_edge(k + 1). The last eight bins would hold Inf and
// NaN and stay empty.
struct LogHistogram {
  static constexpr int kShift = 20;
  static constexpr int kNumBins = 1 << (31 - kShift);

  static constexpr int bin_of(float x) {
    return static_cast<int>((std::bit_cast<std::uint32_t>(x) & 0x7fffffffu) >> kShift);
  }
  // The upper edge of the last finite bin is 2^128, which float32 calls infinity.
  static constexpr double lower_edge(int bin) {
    const std::uint32_t bits = static_cast<std::uint32_t>(bin) << kShift;
    return bits >= 0x7f800000u ? 0x1p128 : static_cast<double>(std::bit_cast<float>(bits));
  }

  // Finite non-zero values by bin. For a large tensor the histogram may be a sample: compare its
  // total() with TensorStats::num_nonzero().
  std::array<std::uint64_t, kNumBins> counts{};

  std::uint64_t total() const {
    std::uint64_t sum = 0;
    for (const std::uint64_t c : counts) sum += c;
    return sum;
  }
};

struct TensorStats {
  std::uint64_t count = 0;      // all elements
  std::uint64_t zeros = 0;      // +0 and -0
  std::uint64_t nonfinite = 0;  // Inf and NaN
  double zero_fraction = 0;     // zeros over finite values; 0 if there are none
  double log_mean = 0;          // of ln|x| over finite non-zeros; 0 if there are none
  double log_std = 0;           // of the same; divided by n, not by n - 1
  double max_abs = 0;           // over finite values, zeros included, as the two means are
  double mean_abs = 0;
  double mean_square = 0;
  LogHistogram histogram;

  std::uint64_t num_finite() const { return count - nonfinite; }
  std::uint64_t num_nonzero() const { return count - nonfinite - zeros; }
};

}  // namespace slimgrad

#endif  // SLIMGRAD_TENSOR_STATS_H_
