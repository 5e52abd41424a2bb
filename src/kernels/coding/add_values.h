// Values added to sums in float32, each with one rounding. T is float, BFloat16Bits or Float16Bits.
// A plain loop that compilers vectorize. noexcept, no allocation, any thread; the same on every
// CPU.
#ifndef SLIMGRAD_KERNELS_CODING_ADD_VALUES_H_
#define SLIMGRAD_KERNELS_CODING_ADD_VALUES_H_

#include <cstddef>

namespace slimgrad::kernels {

// sums[i] += values[i].
template <typename T>
void add_values(const T* values, std::size_t num_values, float* sums) noexcept;

}  // namespace slimgrad::kernels

#endif  // SLIMGRAD_KERNELS_CODING_ADD_VALUES_H_
