#include <ATen/core/Tensor.h>

#include <algorithm>
#include <mutex>
#include <span>

#include "arrays/apply/loop_treatment.h"
#include "torch/apply/apply.h"
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

}  // namespace slimgrad::torch_ops
