// A dense tensor as a span of the core's element types, and threads over its pieces.
#ifndef SLIMGRAD_TORCH_PIECES_H_
#define SLIMGRAD_TORCH_PIECES_H_

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <span>

#include <slimgrad/half.h>
#include <slimgrad/quantize.h>

namespace slimgrad::torch_ops {

// Calls function.template operator()<T>(). REQUIRES: check_float_dtype holds.
template <typename Function>
void with_element_type(at::ScalarType type, const Function& function) {
  if (type == at::kBFloat16)
    function.template operator()<BFloat16Bits>();
  else if (type == at::kHalf)
    function.template operator()<Float16Bits>();
  else
    function.template operator()<float>();
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

// Calls run(first, num_values) from several threads for ranges that begin at multiples of
// kPieceElements and together cover num_values.
template <typename Run>
void for_pieces(std::size_t num_values, const Run& run) {
  constexpr std::size_t kUnit = 4096;
  static_assert(kUnit % kPieceElements == 0);
  const auto num_units = static_cast<std::int64_t>((num_values + kUnit - 1) / kUnit);
  // Fewer than 32 Ki values are not worth a second thread.
  at::parallel_for(0, num_units, 8, [&](std::int64_t first, std::int64_t last) {
    const std::size_t start = static_cast<std::size_t>(first) * kUnit;
    const std::size_t end = std::min(static_cast<std::size_t>(last) * kUnit, num_values);
    run(start, end - start);
  });
}

}  // namespace slimgrad::torch_ops

#endif  // SLIMGRAD_TORCH_PIECES_H_
