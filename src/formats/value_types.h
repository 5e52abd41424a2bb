// The types that values have in memory, by the format's names for them.
#ifndef SLIMGRAD_FORMATS_VALUE_TYPES_H_
#define SLIMGRAD_FORMATS_VALUE_TYPES_H_

#include <slimgrad/half.h>
#include <slimgrad/payload_info.h>

namespace slimgrad {

template <typename T>
inline constexpr DType kDType = DType::kFloat32;
template <>
inline constexpr DType kDType<BFloat16Bits> = DType::kBFloat16;
template <>
inline constexpr DType kDType<Float16Bits> = DType::kFloat16;

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

}  // namespace slimgrad

#endif  // SLIMGRAD_FORMATS_VALUE_TYPES_H_
