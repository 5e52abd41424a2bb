#include "kernels/coding/add_values.h"

#include <bit>

#include <slimgrad/half.h>

#include "kernels/half_float.h"

namespace slimgrad::kernels {

template <typename T>
void add_values(const T* values, std::size_t num_values, float* sums) noexcept {
  for (std::size_t i = 0; i < num_values; ++i) sums[i] += to_float(values[i]);
}

template void add_values(const float*, std::size_t, float*) noexcept;
template void add_values(const BFloat16Bits*, std::size_t, float*) noexcept;
template void add_values(const Float16Bits*, std::size_t, float*) noexcept;

}  // namespace slimgrad::kernels
