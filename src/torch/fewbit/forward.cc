// The forward pass of a few-bit activation: torch's own, and before it the codes of its input,
// which it may overwrite. Two passes, on purpose: slices that stay in a cache between the two gain
// nothing on a machine where the second pass finds the input in the L3 cache or torch's result
// needs fresh pages, and each slice pays for the set-up of torch's op.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <tuple>

#include "torch/checks.h"
#include "torch/errors.h"
#include "torch/fewbit/activation.h"
#include "torch/fewbit/codes_node.h"

namespace slimgrad::torch_ops {
namespace {

std::tuple<at::Tensor, at::Tensor> fewbit_forward(const at::Tensor& x, std::string_view name,
                                                  at::ArrayRef<double> params,
                                                  at::ArrayRef<double> borders, bool even) {
  check_float_dtype(x, name);
  const Activation activation("fewbit_forward", name, params);
  at::Tensor codes = codes_of_steps(x, borders, even);
  at::Tensor y = at::empty_like(x);
  activation.apply(x, y);
  return {y, codes};
}

at::Tensor fewbit_forward_(at::Tensor& x, std::string_view name, at::ArrayRef<double> params,
                           at::ArrayRef<double> borders, bool even) {
  check_float_dtype(x, name);
  const Activation activation("fewbit_forward_", name, params);
  activation.check_inplace("fewbit_forward_");
  at::Tensor codes = codes_of_steps(x, borders, even);
  activation.apply(x, x);
  return codes;
}

}  // namespace

TORCH_LIBRARY_IMPL(slimgrad, CompositeExplicitAutograd, m) {
  m.impl("fewbit_forward", ValueErrors<&fewbit_forward>::call);
  m.impl("fewbit_forward_", ValueErrors<&fewbit_forward_>::call);
}

}  // namespace slimgrad::torch_ops
