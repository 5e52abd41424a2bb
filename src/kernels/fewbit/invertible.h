// Backward of an activation from its output and one bit an element: formats/inverse_table.h says
// how. The bits are few-bit codes of width 1 (formats/fewbit.h): 1 to the right of the minimum.
//
// Every version gives the same bits: the steps are the same, without fused multiply-adds. NaN stays
// NaN. Costs a load of four neighbours an element, from 12 KiB.
#ifndef SLIMGRAD_KERNELS_FEWBIT_INVERTIBLE_H_
#define SLIMGRAD_KERNELS_FEWBIT_INVERTIBLE_H_

#include <cstdint>
#include <span>

#include <slimgrad/half.h>

#include "formats/fewbit.h"
#include "formats/inverse_table.h"

namespace slimgrad::kernels {

// result[i] = gradient[i] * slope. `result` may be `gradient`.
// REQUIRES: equal sizes, and codes of one bit for as many values.
template <typename T>
void multiply_slopes_scalar(std::span<const T> gradient, std::span<const T> outputs,
                            std::span<const std::uint32_t> codes, const InverseTable& table,
                            std::span<T> result) noexcept;
template <typename T>
void multiply_slopes(std::span<const T> gradient, std::span<const T> outputs,
                     std::span<const std::uint32_t> codes, const InverseTable& table,
                     std::span<T> result) noexcept;

}  // namespace slimgrad::kernels

#endif  // SLIMGRAD_KERNELS_FEWBIT_INVERTIBLE_H_
