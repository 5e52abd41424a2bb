// The largest and smallest magnitude of an array: one pass at the speed of memory.
// T is float, BFloat16Bits or Float16Bits. noexcept, no allocation, any thread; the same on every
// CPU.
#ifndef SLIMGRAD_KERNELS_MEASURE_MAGNITUDE_RANGE_H_
#define SLIMGRAD_KERNELS_MEASURE_MAGNITUDE_RANGE_H_

#include <cstdint>
#include <span>

#include <slimgrad/half.h>

namespace slimgrad::kernels {

// As bits of float32 magnitudes (magnitude.h).
struct MagnitudeRange {
  std::uint32_t largest = 0;             // of the finite ones
  std::uint32_t smallest = 0xffffffffu;  // but zero; NaN and Inf count
  std::uint64_t nonfinite = 0;
};

template <typename T>
MagnitudeRange magnitude_range(std::span<const T> values) noexcept;

// The largest finite |x| alone: what the scale of a grid needs and a sample would miss. 0 if there
// is no finite value.
float max_magnitude(std::span<const float> values) noexcept;
float max_magnitude(std::span<const BFloat16Bits> values) noexcept;
float max_magnitude(std::span<const Float16Bits> values) noexcept;

}  // namespace slimgrad::kernels

#endif  // SLIMGRAD_KERNELS_MEASURE_MAGNITUDE_RANGE_H_
