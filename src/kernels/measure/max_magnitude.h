// The largest finite |x| of an array: what the scale of a grid needs and a sample would miss.
#ifndef SLIMGRAD_KERNELS_MEASURE_MAX_MAGNITUDE_H_
#define SLIMGRAD_KERNELS_MEASURE_MAX_MAGNITUDE_H_

#include <span>

#include <slimgrad/half.h>

namespace slimgrad::kernels {

// 0 if there is no finite value. One reading pass, as fast as memory.
float max_magnitude(std::span<const float> values) noexcept;
float max_magnitude(std::span<const BFloat16Bits> values) noexcept;
float max_magnitude(std::span<const Float16Bits> values) noexcept;

}  // namespace slimgrad::kernels

#endif  // SLIMGRAD_KERNELS_MEASURE_MAX_MAGNITUDE_H_
