// Values counted by sign, exponent and the top three bits of the mantissa: eight bins an octave, as
// those of LogHistogram, for each sign. T is float, BFloat16Bits or Float16Bits.
#ifndef SLIMGRAD_KERNELS_MEASURE_SIGNED_BINS_H_
#define SLIMGRAD_KERNELS_MEASURE_SIGNED_BINS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/half_float.h"

namespace slimgrad::kernels {

inline constexpr int kSignedBinShift = 20;  // bits of a float32 that a bin does not tell apart
inline constexpr std::size_t kNumSignedBins = std::size_t{1} << (32 - kSignedBinShift);

// Two counts of a bin, for neighbours: adding to the one that was just written would wait.
using SignedBinCounts = std::array<std::array<std::uint32_t, kNumSignedBins>, 2>;

// Adds to the counts. REQUIRES: fewer than 2^32 values in all.
template <typename T>
void count_signed_bins(std::span<const T> values, SignedBinCounts& counts) noexcept {
  std::size_t i = 0;
  for (; i + 2 <= values.size(); i += 2) {
    ++counts[0][float_bits(values[i]) >> kSignedBinShift];
    ++counts[1][float_bits(values[i + 1]) >> kSignedBinShift];
  }
  if (i < values.size()) ++counts[0][float_bits(values[i]) >> kSignedBinShift];
}

}  // namespace slimgrad::kernels

#endif  // SLIMGRAD_KERNELS_MEASURE_SIGNED_BINS_H_
