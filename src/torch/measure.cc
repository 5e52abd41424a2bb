// measure: the statistics of a tensor.
#include <slimgrad/measure.h>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <span>

#include <slimgrad/torch.h>

#include "torch/checks.h"
#include "torch/errors.h"
#include "torch/stats_tensor.h"

namespace slimgrad::torch_ops {
namespace {

template <typename Element, typename Torch>
TensorStats measure_storage(const at::Tensor& x) {
  const auto* data = reinterpret_cast<const Element*>(x.const_data_ptr<Torch>());
  Measurement measurement(std::span(data, static_cast<std::size_t>(x.numel())));
  const auto num_chunks = static_cast<std::int64_t>(measurement.num_chunks());
  at::parallel_for(0, num_chunks, 1, [&](std::int64_t first, std::int64_t last) {
    measurement.run(static_cast<std::size_t>(first), static_cast<std::size_t>(last));
  });
  return measurement.finish();
}

// Statistics do not ask for an order, so that a tensor that fills its storage without gaps is read
// as it lies there: transposed and channels-last tensors need no copy. (The order still decides
// which values a sampled histogram sees.)
TensorStats measure_tensor(const at::Tensor& x) {
  check_float_dtype(x, "measure");
  const at::Tensor dense = x.is_non_overlapping_and_dense() ? x : x.contiguous();
  switch (x.scalar_type()) {
    case at::kBFloat16:
      return measure_storage<BFloat16Bits, at::BFloat16>(dense);
    case at::kHalf:
      return measure_storage<Float16Bits, at::Half>(dense);
    default:
      return measure_storage<float, float>(dense);
  }
}

at::Tensor measure_cpu(const at::Tensor& x) { return stats_to_tensor(measure_tensor(x)); }

// The result is on x's device.
at::Tensor measure_meta(const at::Tensor& x) {
  check_float_dtype(x, "measure");
  return at::empty_symint({kStatsTensorSize}, x.options().dtype(at::kDouble));
}

}  // namespace

TORCH_LIBRARY_IMPL(slimgrad, CPU, m) { m.impl("measure", ValueErrors<&measure_cpu>::call); }
TORCH_LIBRARY_IMPL(slimgrad, Meta, m) {
  m.impl("measure", ValueErrors<&measure_meta>::call);
  m.impl("_measure_aten", ValueErrors<&measure_meta>::call);
}
// Statistics have no gradient: they look at a tensor from outside the graph.
TORCH_LIBRARY_IMPL(slimgrad, Autograd, m) {
  m.impl("measure", torch::CppFunction::makeFallthrough());
  m.impl("_measure_aten", torch::CppFunction::makeFallthrough());
}

}  // namespace slimgrad::torch_ops

namespace slimgrad {

TensorStats measure(const at::Tensor& x) {
  if (x.is_cpu()) return torch_ops::measure_tensor(x.detach());
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("slimgrad::measure", "");
  return torch_ops::stats_from_tensor(op.typed<at::Tensor(const at::Tensor&)>().call(x), "measure");
}

}  // namespace slimgrad
