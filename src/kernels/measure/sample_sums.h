// The sums behind the statistics that a plan is made from. They are integers, so that they are
// exact and do not depend on the order in which values are added: any CPU, any number of threads
// and any device give the same statistics, and hence the same plan.
//
// Magnitudes and their squares are summed octave by octave, as multiples of the octave's unit and
// its square; logarithms in fixed point.
#ifndef SLIMGRAD_KERNELS_MEASURE_SAMPLE_SUMS_H_
#define SLIMGRAD_KERNELS_MEASURE_SAMPLE_SUMS_H_

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <span>

#include <slimgrad/tensor_stats.h>

#include "kernels/magnitude.h"
#include "kernels/measure/log2.h"

namespace slimgrad::kernels {

__extension__ using WideInteger = unsigned __int128;

constexpr double to_double(WideInteger x) {
  return static_cast<double>(static_cast<std::uint64_t>(x >> 64)) * 0x1p64 +
         static_cast<double>(static_cast<std::uint64_t>(x));
}

// log2 in units of 2^-23, rounded to nearest: below 2^31 in magnitude.
// REQUIRES: 0 < bits < kInfinityBits.
constexpr std::int32_t log2_in_fixed_point(std::uint32_t bits) {
  const Log2Bits normal = log2_bits(bits);
  const float bend = log2_bend(static_cast<std::uint32_t>(normal.bits));
  return normal.whole() + static_cast<std::int32_t>(bend + 0.5f);
}

struct SampleSums {
  static constexpr int kOctaves = 255;  // exponent fields of finite float32; 0 is the subnormals

  std::array<std::uint64_t, LogHistogram::kNumBins> counts{};
  std::array<std::uint64_t, kOctaves> mantissas{};
  std::array<WideInteger, kOctaves> squares{};
  std::int64_t log2 = 0;
  WideInteger log2_square = 0;
  std::uint64_t num_zeros = 0;
  std::uint64_t num_nonfinite = 0;
  std::uint32_t max_bits = 0;

  bool operator==(const SampleSums&) const = default;

  // `bits` as magnitude.h has them. REQUIRES: fewer than 2^32 values.
  constexpr void add(std::uint32_t bits) {
    if (bits >= kInfinityBits) {
      ++num_nonfinite;
    } else if (bits == 0) {
      ++num_zeros;
    } else {
      const std::uint32_t octave = bits >> 23;
      const std::uint64_t mantissa = octave == 0 ? bits : (bits & 0x007fffffu) | 0x00800000u;
      ++counts[bits >> LogHistogram::kShift];
      mantissas[octave] += mantissa;
      squares[octave] += mantissa * mantissa;
      const std::int64_t logarithm = log2_in_fixed_point(bits);
      log2 += logarithm;
      log2_square += static_cast<std::uint64_t>(logarithm * logarithm);
      max_bits = bits > max_bits ? bits : max_bits;
    }
  }
};

// The same as add() for each, more than twice as fast.
SampleSums sum_sample(std::span<const float> values) noexcept;

// What an octave's mantissas are multiples of. Subnormals have the unit of the octave above them.
constexpr double unit_of_octave(int octave) {
  return std::bit_cast<double>(static_cast<std::uint64_t>((octave == 0 ? 1 : octave) - 150 + 1023)
                               << 52);
}

// n sum t^2 - (sum t)^2 of the n logarithms t: an integer below 2^126, so that nothing is lost
// where they are nearly equal.
constexpr double scaled_variance(std::int64_t log2, WideInteger log2_square, std::uint64_t n) {
  const WideInteger sum = static_cast<std::uint64_t>(log2 < 0 ? -log2 : log2);
  return to_double(n * log2_square - sum * sum);
}

constexpr WideInteger square_of_log2(const SampleSums& sums) { return sums.log2_square; }
constexpr WideInteger square_of(const SampleSums& sums, int octave) { return sums.squares[octave]; }

// All numbers of `stats`, which has the names of TensorStats, from the sums of a sample with
// `num_nonzero` of these. Doubles, one rounding an operation, in the order written. `sums` has the
// names of SampleSums; its squares are asked for by square_of() and square_of_log2().
template <class Sums, class SquareRoot, class Stats>
constexpr void numbers_of(const Sums& sums, std::uint64_t num_nonzero,
                          const SquareRoot& square_root, Stats& stats) {
  constexpr double kUnit = kLog2Unit * std::numbers::ln2;
  stats.zeros = sums.num_zeros;
  stats.nonfinite = sums.num_nonfinite;
  stats.count = num_nonzero + sums.num_zeros + sums.num_nonfinite;
  stats.max_abs = magnitude_value(sums.max_bits);
  if (num_nonzero > 0) {
    const auto n = static_cast<double>(num_nonzero);
    const auto log2 = static_cast<std::int64_t>(sums.log2);
    stats.log_mean = static_cast<double>(log2) / n * kUnit;
    stats.log_std =
        square_root(scaled_variance(log2, square_of_log2(sums), num_nonzero)) / n * kUnit;
  }
  if (stats.num_finite() > 0) {
    const auto n = static_cast<double>(stats.num_finite());
    double abs = 0, square = 0;
    for (int octave = 0; octave < SampleSums::kOctaves; ++octave) {
      if (sums.mantissas[octave] == 0) continue;
      const double unit = unit_of_octave(octave);
      abs += static_cast<double>(sums.mantissas[octave]) * unit;
      square += to_double(square_of(sums, octave)) * unit * unit;
    }
    stats.zero_fraction = static_cast<double>(sums.num_zeros) / n;
    stats.mean_abs = abs / n;
    stats.mean_square = square / n;
  }
}

inline TensorStats stats_of(const SampleSums& sums) noexcept {
  TensorStats stats;
  stats.histogram.counts = sums.counts;
  numbers_of(
      sums, stats.histogram.total(), [](double x) { return std::sqrt(x); }, stats);
  return stats;
}

}  // namespace slimgrad::kernels

#endif  // SLIMGRAD_KERNELS_MEASURE_SAMPLE_SUMS_H_
