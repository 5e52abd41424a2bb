#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <mutex>
#include <span>

#include "arrays/apply/loop_treatment.h"
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

at::Tensor apply_cpu(const char* op, const Treatment& treatment, const at::Tensor& x) {
  check_float_dtype(x, op);
  const at::Tensor dense = is_dense(x) ? x : x.contiguous();
  const at::Tensor out = at::empty_like(dense);
  apply_cpu(op, treatment, dense, out);
  return out;
}

void apply_cpu_(const char* op, const Treatment& treatment, const at::Tensor& x) {
  check_float_dtype(x, op);
  const at::Tensor dense = is_dense(x) ? x : x.contiguous();
  apply_cpu(op, treatment, dense, dense);
  if (!is_dense(x)) x.copy_(dense);
}

}  // namespace slimgrad::torch_ops
