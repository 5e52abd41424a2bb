// The sums behind TensorStats, over one chunk of an array.
//
// Nothing overflows or underflows: magnitudes and squares that float32 could not hold are summed in
// double, where the square of a float32 is exact. Logarithms are to base 2, as cheap as the format
// allows (log2.h). The sums are the same bits on every CPU.
#ifndef SLIMGRAD_KERNELS_MEASURE_MEASURE_H_
#define SLIMGRAD_KERNELS_MEASURE_MEASURE_H_

#include <cstdint>
#include <span>

#include <slimgrad/half.h>

namespace slimgrad::kernels {

struct ChunkSums {
  std::uint64_t num_zeros = 0;
  std::uint64_t num_nonfinite = 0;
  double sum_log2 = 0;  // of log2|x| over finite non-zeros, and of its square
  double sum_log2_square = 0;
  double sum_abs = 0;  // over finite values
  double sum_square = 0;
  std::uint32_t max_bits = 0;  // the largest finite |x|, as the bits of a float32

  bool operator==(const ChunkSums&) const = default;
};

// The largest relative error of sum_abs and sum_square.
inline constexpr double kSumRelativeError = 2e-6;

// The error of a logarithm beside kLog2Error of log2.h: its distance from the logarithm of a
// typical value is rounded to float32 twice.
inline constexpr double kLog2RelativeError = 0x1p-23;

// The specification.
ChunkSums measure_chunk_scalar(std::span<const float> values) noexcept;
ChunkSums measure_chunk_scalar(std::span<const BFloat16Bits> values) noexcept;
ChunkSums measure_chunk_scalar(std::span<const Float16Bits> values) noexcept;

// The version that dispatch.h selects: what the specification gives, to the bit.
// REQUIRES: fewer than 2^31 values.
ChunkSums measure_chunk(std::span<const float> values) noexcept;
ChunkSums measure_chunk(std::span<const BFloat16Bits> values) noexcept;
ChunkSums measure_chunk(std::span<const Float16Bits> values) noexcept;

}  // namespace slimgrad::kernels

#endif  // SLIMGRAD_KERNELS_MEASURE_MEASURE_H_
