// Counting magnitudes into the bins of LogHistogram: everything, or an eighth of it.
//
// The sample. Of every eight neighbours (by index in the whole array) one is read, chosen by three
// bits of a hash of the index: the same elements whatever the chunking, the threads and the CPU.
// This is stratified sampling. If p_g is the fraction of group g's eight values below some
// threshold, the sample's estimate of the array's fraction p is unbiased, with variance
// sum p_g (1 - p_g) / m^2 over the m groups, and since p (1 - p) is concave that is at most
// p (1 - p) / m: whatever pattern the array has (channels, rows, blocks of zeros), the standard
// error is at most 0.5 / sqrt(m), as if m values had been drawn at random. A pattern that would
// fool a fixed stride, such as a channel count that divides it, does no harm.
#ifndef SLIMGRAD_KERNELS_MEASURE_HISTOGRAM_H_
#define SLIMGRAD_KERNELS_MEASURE_HISTOGRAM_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include <slimgrad/half.h>
#include <slimgrad/seed.h>
#include <slimgrad/tensor_stats.h>

namespace slimgrad::kernels {

using BinCounts = std::span<std::uint64_t, LogHistogram::kNumBins>;

// The sample is drawn in blocks of this many values: 16 groups, 48 bits of a hash.
inline constexpr std::size_t kSampleBlock = 128;
inline constexpr std::size_t kSampleGroup = 8;

// Which one of each group of a block: three bits a group, the first group's lowest. SplitMix64 on
// its counter sequence.
constexpr std::uint64_t sample_choices(std::uint64_t block) {
  return mix_bits(block * 0x9e3779b97f4a7c15u);
}

// Adds the finite non-zero values to `counts`.
// REQUIRES: fewer than 2^32 values.
void count_magnitudes(std::span<const float> values, BinCounts counts) noexcept;
void count_magnitudes(std::span<const BFloat16Bits> values, BinCounts counts) noexcept;
void count_magnitudes(std::span<const Float16Bits> values, BinCounts counts) noexcept;

// Adds those of the sample. `first_index` is the index of values[0] in the whole array.
// REQUIRES: first_index is a multiple of kSampleBlock, and fewer than 2^32 values.
void count_sampled_magnitudes(std::span<const float> values, std::uint64_t first_index,
                              BinCounts counts) noexcept;
void count_sampled_magnitudes(std::span<const BFloat16Bits> values, std::uint64_t first_index,
                              BinCounts counts) noexcept;
void count_sampled_magnitudes(std::span<const Float16Bits> values, std::uint64_t first_index,
                              BinCounts counts) noexcept;

}  // namespace slimgrad::kernels

#endif  // SLIMGRAD_KERNELS_MEASURE_HISTOGRAM_H_
