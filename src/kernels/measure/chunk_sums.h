// How the sums of measure.h are added up: in which order, and in which type. The vector code, its
// specification and the kernels of devices share it, and so have the same bits.
#ifndef SLIMGRAD_KERNELS_MEASURE_CHUNK_SUMS_H_
#define SLIMGRAD_KERNELS_MEASURE_CHUNK_SUMS_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <numbers>

#include "kernels/magnitude.h"
#include "kernels/measure/log2.h"
#include "kernels/measure/measure.h"

namespace slimgrad::kernels::sums {

// Every 16th value is added by the same lane, in order and without fused multiply-adds, and lanes
// are joined by a fixed tree. Vectors of any width do that: a narrow one goes over a block once for
// each of its parts of the lanes.
inline constexpr std::size_t kLanes = 16;

// A block has kBlockRows values for each lane. Its sums fit into float32, which takes half the
// work, if it is an easy one: no subnormals, no Inf or NaN, and a largest magnitude (if not zero)
// between 2^-46 and 2^60. Then no square overflows, and a square that underflows is too small
// against the largest to matter. That is assumed, and looked at in the end. Logarithms are summed
// about a pivot near their mean, so that the spread of a narrow distribution is not lost in the
// rounding of its mean. A lane adds kBlockRows numbers, so that sum_abs and sum_square of a block
// are good to 32 * 2^-24 = 2e-6 at worst.
inline constexpr std::size_t kBlockRows = 32;
inline constexpr std::size_t kBlockValues = kBlockRows * kLanes;
inline constexpr std::uint32_t kLeastEasyMaximum = (127 - 46) << 23;
inline constexpr std::uint32_t kLargestEasyMaximum = (127 + 60) << 23;

// Takes the bits of the largest magnitude and of the smallest nonzero one.
constexpr bool is_easy(std::uint32_t largest, std::uint32_t smallest) {
  return largest == 0 || (largest >= kLeastEasyMaximum && largest <= kLargestEasyMaximum &&
                          smallest >= kSmallestNormalBits);
}

// A lane's sums of an easy block. Logarithms are in units of 2^-23, here and below.
struct EasySums {
  float log = 0, log_square = 0, abs = 0, square = 0;
  std::uint32_t largest = 0, smallest = kInfinityBits, num_zeros = 0;

  constexpr void add(std::uint32_t bits, std::int32_t pivot) {
    num_zeros += bits == 0;
    largest = bits > largest ? bits : largest;
    smallest = bits == 0 || smallest < bits ? smallest : bits;
    // Modulo 2^32, as vectors subtract: of NaN, whose block is not easy, the distance may not fit.
    const auto distance =
        static_cast<float>(static_cast<std::int32_t>(bits - static_cast<std::uint32_t>(pivot)));
    const float logarithm = bits == 0 ? 0.0f : log2_bend(bits) + distance;
    const float x = std::bit_cast<float>(bits);
    log += logarithm;
    log_square += logarithm * logarithm;
    abs += x;
    square += x * x;
  }
};

// What any other value adds, in double.
struct Terms {
  double log, magnitude;

  // REQUIRES: 0 < bits < kInfinityBits.
  constexpr explicit Terms(std::uint32_t bits)
      : log(logarithm_of(log2_bits(bits))), magnitude(magnitude_value(bits)) {}

 private:
  static constexpr double logarithm_of(const Log2Bits& normal) {
    const float bend = log2_bend(static_cast<std::uint32_t>(normal.bits));
    return static_cast<double>(normal.whole()) + static_cast<double>(bend);
  }
};

// The sums of each lane. Logarithms of easy blocks are taken from the pivot, the others from zero.
struct LaneSums {
  alignas(64) double log[kLanes] = {};
  alignas(64) double log_square[kLanes] = {};
  alignas(64) double easy_log[kLanes] = {};
  alignas(64) double easy_log_square[kLanes] = {};
  alignas(64) double abs[kLanes] = {};
  alignas(64) double square[kLanes] = {};
  std::uint64_t num_easy = 0;  // non-zeros in easy blocks
  std::uint64_t num_zeros = 0;
  std::uint64_t num_nonfinite = 0;
  std::uint32_t max_bits = 0;
  // As the bits of a float; 0 if there is none yet.
  std::int32_t pivot = 0;

  constexpr void add(std::size_t lane, const EasySums& block) {
    easy_log[lane] += static_cast<double>(block.log);
    easy_log_square[lane] += static_cast<double>(block.log_square);
    abs[lane] += static_cast<double>(block.abs);
    square[lane] += static_cast<double>(block.square);
  }
  constexpr void add(std::size_t lane, std::uint32_t bits) {
    const Terms terms(bits);
    log[lane] += terms.log;
    log_square[lane] += terms.log * terms.log;
    abs[lane] += terms.magnitude;
    square[lane] += terms.magnitude * terms.magnitude;
  }
};

constexpr double total(const double (&lanes)[kLanes]) {
  double sums[kLanes / 2] = {};
  for (std::size_t i = 0; i < kLanes / 2; ++i) sums[i] = lanes[i] + lanes[i + kLanes / 2];
  for (std::size_t half = kLanes / 4; half > 0; half /= 2)
    for (std::size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  return sums[0];
}

// Near the mean of the logarithms of the values seen.
constexpr std::int32_t pivot_of(const LaneSums& all, std::uint64_t num_seen) {
  const std::uint64_t num_values = num_seen - all.num_zeros - all.num_nonfinite;
  if (num_values == 0) return 0;
  const double mean = total(all.log) / static_cast<double>(num_values);
  return static_cast<std::int32_t>(mean) + kLog2Bias;
}

constexpr ChunkSums joined(const LaneSums& all) {
  ChunkSums sums;
  sums.num_zeros = all.num_zeros;
  sums.num_nonfinite = all.num_nonfinite;
  sums.sum_abs = total(all.abs);
  sums.sum_square = total(all.square);
  sums.max_bits = all.max_bits;
  // Numbers x = d + s: sum x = sum d + n s, and
  // sum x^2 = sum d^2 + 2 s sum d + n s^2 = sum d^2 + s (sum d + sum x).
  const double of_d = total(all.easy_log), s = all.pivot - kLog2Bias;
  const double of_x = of_d + static_cast<double>(all.num_easy) * s;
  sums.sum_log2 = (total(all.log) + of_x) * kLog2Unit;
  sums.sum_log2_square =
      (total(all.log_square) + (total(all.easy_log_square) + s * (of_d + of_x))) *
      (kLog2Unit * kLog2Unit);
  return sums;
}

// ---- chunks ------------------------------------------------------------------------------------

// Mean and sum of squared deviations of a growing set of numbers, joined set by set: Chan, Golub
// and LeVeque (1979). Deviations are taken inside a chunk and then between chunks, so that no
// difference of two large sums over the whole array is ever formed.
struct Spread {
  double num_values = 0, mean = 0, deviation = 0;

  constexpr void join(double num_joined, double sum, double sum_square) {
    if (num_joined == 0) return;
    const double joined_mean = sum / num_joined;
    // Rounding may take equal values below zero.
    const double joined_deviation = sum_square - sum * joined_mean;
    const double total = num_values + num_joined;
    const double delta = joined_mean - mean;
    deviation += (joined_deviation > 0 ? joined_deviation : 0.0) +
                 delta * delta * (num_values * num_joined / total);
    mean += delta * (num_joined / total);
    num_values = total;
  }
};

// The chunks of an array, joined in their order, and what TensorStats says of them.
struct ArraySums {
  std::uint64_t num_zeros = 0, num_nonfinite = 0;
  std::uint32_t max_bits = 0;
  double sum_abs = 0, sum_square = 0;
  Spread log2;

  constexpr void join(const ChunkSums& chunk, std::uint64_t num_values) {
    num_zeros += chunk.num_zeros;
    num_nonfinite += chunk.num_nonfinite;
    log2.join(static_cast<double>(num_values - chunk.num_zeros - chunk.num_nonfinite),
              chunk.sum_log2, chunk.sum_log2_square);
    max_bits = chunk.max_bits > max_bits ? chunk.max_bits : max_bits;
    sum_abs += chunk.sum_abs;
    sum_square += chunk.sum_square;
  }

  // All but the histogram. `Stats` has the fields of TensorStats.
  template <class Stats, class SquareRoot>
  constexpr void finish(std::uint64_t count, const SquareRoot& square_root, Stats& stats) const {
    stats.count = count;
    stats.zeros = num_zeros;
    stats.nonfinite = num_nonfinite;
    stats.log_mean = log2.mean * std::numbers::ln2;
    stats.log_std = log2.num_values == 0
                        ? 0.0
                        : square_root(log2.deviation / log2.num_values) * std::numbers::ln2;
    stats.max_abs = magnitude_value(max_bits);
    const auto num_finite = static_cast<double>(count - num_nonfinite);
    stats.zero_fraction = num_finite > 0 ? static_cast<double>(num_zeros) / num_finite : 0.0;
    stats.mean_abs = num_finite > 0 ? sum_abs / num_finite : 0.0;
    stats.mean_square = num_finite > 0 ? sum_square / num_finite : 0.0;
  }
};

}  // namespace slimgrad::kernels::sums

#endif  // SLIMGRAD_KERNELS_MEASURE_CHUNK_SUMS_H_
