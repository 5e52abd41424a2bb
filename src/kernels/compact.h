// The non-zero values of an array, and where they are.
#ifndef SLIMGRAD_KERNELS_COMPACT_H_
#define SLIMGRAD_KERNELS_COMPACT_H_

#include <cstddef>
#include <cstdint>

namespace slimgrad::kernels {

// Room that must be left behind the last entry: whole vectors are written.
inline constexpr std::size_t kCompactSlack = 8;

// Writes every x[i] that is not zero (NaN is not), in order, to `values`, and first + i * step to
// `offsets`. Returns how many there were. REQUIRES: room for num_values + kCompactSlack entries.
std::size_t compact(const float* x, std::size_t num_values, std::int32_t first, std::int32_t step,
                    float* values, std::int32_t* offsets) noexcept;
std::size_t compact_scalar(const float* x, std::size_t num_values, std::int32_t first,
                           std::int32_t step, float* values, std::int32_t* offsets) noexcept;

}  // namespace slimgrad::kernels

#endif  // SLIMGRAD_KERNELS_COMPACT_H_
