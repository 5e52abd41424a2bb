#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <mutex>
#include <span>

#include "arrays/apply/apply.h"
#include "torch/apply/apply.h"
#include "torch/checks.h"
#include "torch/elements.h"
#include "torch/threads.h"

namespace slimgrad::torch_ops {

ApplyCounts apply_cpu(const char* op, const Treatment& treatment, const at::Tensor& in,
                      const at::Tensor& out) {
  ApplyCounts counts;
  std::mutex mutex;
  with_element_type(in.scalar_type(), [&]<typename T>() {
    const std::span<const T> from = elements<T>(in);
    const std::span<T> to = mutable_elements<T>(out);
    // An empty piece checks the arguments of an empty tensor, too.
    apply_as<T>(op, treatment, {}, {}, 0);
    for_pieces(from.size(), [&](std::size_t first, std::size_t num_values) {
      const ApplyCounts piece = apply_as<T>(op, treatment, from.subspan(first, num_values),
                                            to.subspan(first, num_values), first);
      const std::lock_guard lock(mutex);
      counts += piece;
    });
  });
  return counts;
}

at::Tensor apply_cpu(const char* op, const Treatment& treatment, const at::Tensor& x,
                     ApplyCounts* counts) {
  check_float_dtype(x, op);
  const at::Tensor dense = is_dense(x) ? x : x.contiguous();
  const at::Tensor out = at::empty_like(dense);
  const ApplyCounts found = apply_cpu(op, treatment, dense, out);
  if (counts != nullptr) *counts = found;
  return out;
}

ApplyCounts apply_cpu_(const char* op, const Treatment& treatment, const at::Tensor& x) {
  check_float_dtype(x, op);
  if (is_dense(x)) return apply_cpu(op, treatment, x, x);
  const at::Tensor dense = x.contiguous();
  const ApplyCounts counts = apply_cpu(op, treatment, dense, dense);
  x.copy_(dense);
  return counts;
}

at::Tensor counts_tensor(const ApplyCounts& counts) {
  at::Tensor result = at::empty({3}, at::TensorOptions().dtype(at::kLong));
  auto* values = result.data_ptr<std::int64_t>();
  values[0] = static_cast<std::int64_t>(counts.zeros);
  values[1] = static_cast<std::int64_t>(counts.at_threshold);
  values[2] = static_cast<std::int64_t>(counts.nonfinite);
  return result;
}

}  // namespace slimgrad::torch_ops
