// The largest number of a type: the uppermost level may lie above it, because its step is rounded
// up.
#ifndef SLIMGRAD_KERNELS_SAVED_RANGE_H_
#define SLIMGRAD_KERNELS_SAVED_RANGE_H_

#include <slimgrad/half.h>

namespace slimgrad::kernels {

template <typename T>
inline constexpr float kLargest = 0x1.fffffep127f;
template <>
inline constexpr float kLargest<BFloat16Bits> = 0x1.fep127f;
template <>
inline constexpr float kLargest<Float16Bits> = 65504.0f;

}  // namespace slimgrad::kernels

#endif  // SLIMGRAD_KERNELS_SAVED_RANGE_H_
