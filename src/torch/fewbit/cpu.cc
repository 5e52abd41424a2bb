// The few-bit ops on the CPU: codes, and the gradient times the level of each code or times the
// slope that an invertible activation has at its output.
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <torch/library.h>

#include "base/check.h"
#include "kernels/dispatch.h"
#include "math/fewbit/inverse_table.h"
#include "torch/checks.h"
#include "torch/elements.h"
#include "torch/errors.h"
#include "torch/fewbit/ops.h"

namespace slimgrad::torch_ops {
namespace {

// ---- step tables -------------------------------------------------------------------------------

at::Tensor stepwise_codes(const at::Tensor& x, at::ArrayRef<double> borders, bool even) {
  kernels::obey_environment();
  check_float_dtype(x, "stepwise_codes");
  const kernels::StepLookup steps = lookup_of_borders("stepwise_codes", borders, even);
  at::Tensor codes = empty_codes(x, steps.bits);
  const at::Tensor dense = dense_like_result(x);
  with_element_type(x.scalar_type(), [&]<typename T>() {
    const auto values = elements<T>(dense);
    const auto words = mutable_elements<std::uint32_t>(codes);
    for_fewbit_ranges(values.size(),
                      [&](FewbitRange range) { pack_codes(values, steps, words, range); });
  });
  return codes;
}

constexpr const char* kStepwise = "stepwise_backward";

// REQUIRES: both dense with equal strides; `result` may be `grad`.
void multiply_levels(const at::Tensor& grad, const at::Tensor& codes,
                     const kernels::StepLookup& steps, const at::Tensor& result) {
  const at::Tensor plain_codes = codes.contiguous();
  with_element_type(grad.scalar_type(), [&]<typename T>() {
    const auto from = elements<T>(grad);
    const auto to = mutable_elements<T>(result);
    const auto words = elements<std::uint32_t>(plain_codes);
    for_fewbit_ranges(from.size(), [&](FewbitRange range) {
      slimgrad::multiply_levels(from, words, steps, to, range);
    });
  });
}

// `strides` are those of the tensor whose storage order the codes have.
at::Tensor stepwise_backward(const at::Tensor& grad, const at::Tensor& codes,
                             at::ArrayRef<double> levels, at::IntArrayRef strides) {
  kernels::obey_environment();
  const kernels::StepLookup steps = checked_levels(kStepwise, grad, codes, levels);
  at::Tensor result = at::empty_strided(grad.sizes(), strides, grad.options());
  check(result.is_non_overlapping_and_dense(), kStepwise, "strides of a dense tensor", strides);
  const at::Tensor dense = grad.strides() == strides ? grad : result.copy_(grad);
  multiply_levels(dense, codes, steps, result);
  return result;
}

void stepwise_backward_(at::Tensor& grad, const at::Tensor& codes, at::ArrayRef<double> levels) {
  kernels::obey_environment();
  const kernels::StepLookup steps = checked_levels("stepwise_backward_", grad, codes, levels);
  check(grad.is_non_overlapping_and_dense(), "stepwise_backward_", "a dense gradient",
        grad.strides());
  multiply_levels(grad, codes, steps, grad);
}

// ---- from the output ---------------------------------------------------------------------------

// REQUIRES: all dense with equal strides; `result` may be `grad`.
void multiply_slopes(const at::Tensor& grad, const at::Tensor& y, const at::Tensor& codes,
                     const InverseTable& table, const at::Tensor& result) {
  const at::Tensor plain_codes = codes.contiguous();
  with_element_type(y.scalar_type(), [&]<typename T>() {
    const auto from = elements<T>(grad);
    const auto outputs = elements<T>(y);
    const auto to = mutable_elements<T>(result);
    const auto words = elements<std::uint32_t>(plain_codes);
    for_fewbit_ranges(from.size(), [&](FewbitRange range) {
      slimgrad::multiply_slopes(from, outputs, words, table, to, range);
    });
  });
}

at::Tensor invertible_backward(const at::Tensor& grad, const at::Tensor& y, const at::Tensor& codes,
                               std::string_view name) {
  kernels::obey_environment();
  check_invertible("invertible_backward", grad, y, codes);
  check(y.is_non_overlapping_and_dense(), "invertible_backward", "a dense output", y.strides());
  at::Tensor result = at::empty_like(y);
  const at::Tensor dense = grad.strides() == y.strides() ? grad : result.copy_(grad);
  multiply_slopes(dense, y, codes, inverse_table(name), result);
  return result;
}

void invertible_backward_(at::Tensor& grad, const at::Tensor& y, const at::Tensor& codes,
                          std::string_view name) {
  kernels::obey_environment();
  check_invertible("invertible_backward_", grad, y, codes);
  check(y.is_non_overlapping_and_dense() && grad.strides() == y.strides(), "invertible_backward_",
        "a dense output and a gradient with its strides", grad.strides());
  multiply_slopes(grad, y, codes, inverse_table(name), grad);
}

}  // namespace

TORCH_LIBRARY_IMPL(slimgrad, CPU, m) {
  m.impl("stepwise_codes", ValueErrors<&stepwise_codes>::call);
  m.impl("stepwise_backward", ValueErrors<&stepwise_backward>::call);
  m.impl("stepwise_backward_", ValueErrors<&stepwise_backward_>::call);
  m.impl("invertible_backward", ValueErrors<&invertible_backward>::call);
  m.impl("invertible_backward_", ValueErrors<&invertible_backward_>::call);
}

}  // namespace slimgrad::torch_ops
