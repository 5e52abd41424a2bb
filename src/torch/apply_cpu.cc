#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <mutex>
#include <span>

#include <slimgrad/prune.h>

#include "torch/apply.h"
#include "torch/checks.h"
#include "torch/pieces.h"

namespace slimgrad::torch_ops {
namespace {

template <typename T>
ApplyCounts apply_piece(const Application& application, std::span<const T> in, std::span<T> out,
                        std::uint64_t first_index) {
  const auto& [op, threshold, quantizer, seed] = application;
  if (threshold && quantizer)
    return prune_quantize(in, out, *threshold, *quantizer, seed, first_index);
  if (threshold) return prune(in, out, *threshold, seed, first_index);
  return quantize(in, out, *quantizer, seed, first_index);
}

}  // namespace

ApplyCounts apply_cpu(const Application& application, const at::Tensor& in, const at::Tensor& out) {
  ApplyCounts counts;
  std::mutex mutex;
  with_element_type(in.scalar_type(), [&]<typename T>() {
    const std::span<const T> from = elements<T>(in);
    const std::span<T> to = mutable_elements<T>(out);
    // An empty piece checks the arguments of an empty tensor, too.
    apply_piece<T>(application, {}, {}, 0);
    for_pieces(from.size(), [&](std::size_t first, std::size_t num_values) {
      const ApplyCounts piece = apply_piece<T>(application, from.subspan(first, num_values),
                                               to.subspan(first, num_values), first);
      const std::lock_guard lock(mutex);
      counts += piece;
    });
  });
  return counts;
}

at::Tensor apply_cpu(const Application& application, const at::Tensor& x, ApplyCounts* counts) {
  check_float_dtype(x, application.op);
  const at::Tensor dense = is_dense(x) ? x : x.contiguous();
  const at::Tensor out = at::empty_like(dense);
  const ApplyCounts found = apply_cpu(application, dense, out);
  if (counts != nullptr) *counts = found;
  return out;
}

ApplyCounts apply_cpu_(const Application& application, const at::Tensor& x) {
  check_float_dtype(x, application.op);
  if (is_dense(x)) return apply_cpu(application, x, x);
  const at::Tensor dense = x.contiguous();
  const ApplyCounts counts = apply_cpu(application, dense, dense);
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
