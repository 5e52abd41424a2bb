// A dense tensor as a span of the core's element types.
#ifndef SLIMGRAD_TORCH_ELEMENTS_H_
#define SLIMGRAD_TORCH_ELEMENTS_H_

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "formats/value_types.h"

namespace slimgrad::torch_ops {

// In the order of DType.
inline constexpr std::array kScalarTypes = {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble,
                                            at::kChar};

inline at::ScalarType scalar_type_of(DType type) {
  return kScalarTypes[static_cast<std::size_t>(type)];
}
inline std::optional<DType> find_dtype(at::ScalarType type) {
  const auto* const found = std::find(kScalarTypes.begin(), kScalarTypes.end(), type);
  if (found == kScalarTypes.end()) return std::nullopt;
  return static_cast<DType>(found - kScalarTypes.begin());
}
// float32 for what has no kernels of its own.
inline DType dtype_of(at::ScalarType type) { return find_dtype(type).value_or(DType::kFloat32); }

// Calls function.template operator()<T>(). REQUIRES: check_float_dtype holds.
template <typename Function>
void with_element_type(at::ScalarType type, const Function& function) {
  with_value_type(dtype_of(type), function);
}

// In the order of memory. REQUIRES: the tensor has no gaps, and T is its type.
template <typename T>
std::span<const T> elements(const at::Tensor& x) {
  return {static_cast<const T*>(x.const_data_ptr()), static_cast<std::size_t>(x.numel())};
}
template <typename T>
std::span<T> mutable_elements(const at::Tensor& x) {
  return {static_cast<T*>(x.mutable_data_ptr()), static_cast<std::size_t>(x.numel())};
}

}  // namespace slimgrad::torch_ops

#endif  // SLIMGRAD_TORCH_ELEMENTS_H_
