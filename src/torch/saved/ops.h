// The ops that pack and unpack what backward keeps, for callers in C++.
#ifndef SLIMGRAD_TORCH_SAVED_OPS_H_
#define SLIMGRAD_TORCH_SAVED_OPS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

namespace slimgrad::torch_ops {

at::Tensor pack_saved_cpu(const at::Tensor& x, std::int64_t bits, std::int64_t group,
                          std::string_view rounding, std::int64_t seed, std::int64_t number);
at::Tensor unpack_saved_cpu(const at::Tensor& packed, at::IntArrayRef size, at::IntArrayRef stride,
                            at::ScalarType dtype, std::int64_t bits, std::int64_t group);

// Empty if it would save too little. only_masks: and for all but those whose values are 0 or one
// other number.
at::Tensor pack_exact_cpu(const at::Tensor& x, bool only_masks);
at::Tensor unpack_exact_cpu(const at::Tensor& packed, at::IntArrayRef size, at::IntArrayRef stride,
                            at::ScalarType dtype);

}  // namespace slimgrad::torch_ops

#endif  // SLIMGRAD_TORCH_SAVED_OPS_H_
