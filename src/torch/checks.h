// Checks of tensor arguments, in one place and with one wording.
#ifndef SLIMGRAD_TORCH_CHECKS_H_
#define SLIMGRAD_TORCH_CHECKS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"

namespace slimgrad::torch_ops {

inline bool is_float_dtype(at::ScalarType type) {
  return type == at::kFloat || type == at::kBFloat16 || type == at::kHalf;
}

// Throws InvalidArgument unless x is float32, bfloat16 or float16.
inline void check_float_dtype(const at::Tensor& x, std::string_view op) {
  check(is_float_dtype(x.scalar_type()), op, "x of type float32, bfloat16 or float16",
        c10::toString(x.scalar_type()));
}

// Throws InvalidArgument unless the values of x lie in memory one by one, or would: also on "meta".
inline void check_dense(const at::Tensor& x, std::string_view op, const std::string& name = "x") {
  if (!x.defined()) throw_invalid(op, name + " to be a tensor", "none");
  if (x.layout() != at::kStrided)
    throw_invalid(op, name + " to be a dense tensor", "layout ", x.layout());
  if (x.is_quantized()) throw_invalid(op, name + " to be a dense tensor", "a quantized one");
}
// The same, with values behind it.
inline void check_values(const at::Tensor& x, std::string_view op, const std::string& name = "x") {
  check_dense(x, op, name);
  if (x.is_meta()) throw_invalid(op, name + " to have values", "a tensor on device meta");
}

// State is float64, on the CPU unless a device plans by itself: not every device has that type.
// Throws InvalidArgument, in the name of `op`, for another tensor.
inline void check_state(const at::Tensor& state, std::int64_t size, std::string_view op,
                        const char* name) {
  const bool holds = state.defined() && state.device().is_cpu() &&
                     state.scalar_type() == at::kDouble && state.is_contiguous() &&
                     state.numel() == size;
  if (holds) return;
  if (!state.defined()) throw_invalid(op, std::string(name) + " as a tensor", "none");
  throw_invalid(op,
                std::string(name) + " as a contiguous float64 CPU tensor of " +
                    std::to_string(size) + " elements",
                "a tensor of ", state.numel(), " elements of type ", state.scalar_type(), " on ",
                state.device(), state.is_contiguous() ? "" : ", with gaps");
}

// The same for a state on a device.
inline void check_form(const at::Tensor& state, std::int64_t size, std::string_view op,
                       const char* name) {
  if (state.scalar_type() == at::kDouble && state.is_contiguous() && state.numel() == size) return;
  throw_invalid(op,
                std::string(name) + " as a contiguous float64 tensor of " + std::to_string(size) +
                    " elements",
                "a tensor of ", state.numel(), " elements of type ", state.scalar_type(),
                state.is_contiguous() ? "" : ", with gaps");
}

// A state that was saved may have been loaded to another device: where the host can read it.
inline at::Tensor saved_here(const at::Tensor& saved) {
  return saved.defined() && !saved.is_meta() ? saved.detach().cpu().contiguous() : saved;
}

// The same where nothing is computed: a state of another type or size, or one without values beside
// a tensor `x` that has some. While a graph is traced none has.
inline void check_meta_state(const at::Tensor& x, const at::Tensor& state, std::int64_t size,
                             const char* op, const char* name) {
  const bool is_like_it = state.scalar_type() == at::kDouble && state.sym_numel() == size;
  if (!is_like_it || (!x.is_meta() && state.is_meta())) check_state(state, size, op, name);
}

}  // namespace slimgrad::torch_ops

#endif  // SLIMGRAD_TORCH_CHECKS_H_
