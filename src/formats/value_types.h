// The types that values have in memory, by the format's names for them.
#ifndef SLIMGRAD_FORMATS_VALUE_TYPES_H_
#define SLIMGRAD_FORMATS_VALUE_TYPES_H_

#include <limits>

#include <slimgrad/half.h>
#include <slimgrad/payload_info.h>

namespace slimgrad {

template <typename T>
inline constexpr DType kDType = DType::kFloat32;
template <>
inline constexpr DType kDType<BFloat16Bits> = DType::kBFloat16;
template <>
inline constexpr DType kDType<Float16Bits> = DType::kFloat16;

// The largest finite number.
template <typename T>
inline constexpr float kLargest = std::numeric_limits<float>::max();
template <>
inline constexpr float kLargest<BFloat16Bits> = 0x1.fep127f;
template <>
inline constexpr float kLargest<Float16Bits> = 65504.0f;

// Calls function.template operator()<T>(). REQUIRES: a type of 16 or 32 bits.
template <typename Function>
decltype(auto) with_value_type(DType dtype, Function&& function) {
  switch (dtype) {
    case DType::kBFloat16:
      return function.template operator()<BFloat16Bits>();
    case DType::kFloat16:
      return function.template operator()<Float16Bits>();
    default:
      return function.template operator()<float>();
  }
}

inline double largest_of(DType type) {
  return with_value_type(type, []<typename T>() { return kLargest<T>; });
}

}  // namespace slimgrad

#endif  // SLIMGRAD_FORMATS_VALUE_TYPES_H_
