// Checks, sizes and shapes of the few-bit ops, and the ops by kernels (backend.h).
#include "torch/fewbit/ops.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <torch/library.h>

#include <cmath>

#include "base/check.h"
#include "torch/checks.h"
#include "torch/device/device_ops.h"
#include "torch/errors.h"
#include "torch/fewbit/activation.h"
#include "torch/fewbit/backend.h"

namespace slimgrad::torch_ops {
namespace {

// The length of the int32 tensor of codes.
c10::SymInt num_code_words(const c10::SymInt& num_values, int bits) {
  constexpr auto kBlock = static_cast<std::int64_t>(fewbit::kBlockValues);
  return (num_values + (kBlock - 1)) / kBlock *
         static_cast<std::int64_t>(fewbit::block_words(bits));
}

void check_codes(std::string_view op, const at::Tensor& codes, const at::Tensor& of, int bits) {
  check(codes.scalar_type() == at::kInt && codes.dim() == 1, op,
        "codes to be a one-dimensional int32 tensor", codes.toString());
  check(codes.sym_numel() == num_code_words(of.sym_numel(), bits), op,
        "as many codes as the gradient has elements: int32 words", codes.sym_numel());
}

}  // namespace

kernels::StepLookup checked_levels(const char* op, const at::Tensor& grad, const at::Tensor& codes,
                                   at::ArrayRef<double> levels) {
  check_float_dtype(grad, op);
  const kernels::StepLookup steps = lookup_of_levels(op, levels);
  check_codes(op, codes, grad, steps.bits);
  return steps;
}

void check_invertible(const char* op, const at::Tensor& grad, const at::Tensor& y,
                      const at::Tensor& codes) {
  check_float_dtype(y, op);
  check(grad.scalar_type() == y.scalar_type() && grad.sym_sizes() == y.sym_sizes(), op,
        "a gradient with the output's dtype and shape", grad.toString(), grad.sym_sizes());
  check_codes(op, codes, y, 1);
}

at::Tensor empty_codes(const at::Tensor& x, int bits) {
  return at::empty_symint({num_code_words(x.sym_numel(), bits)}, x.options().dtype(at::kInt));
}

at::Tensor dense_like_result(const at::Tensor& x) {
  return x.is_non_overlapping_and_dense() ? x : at::empty_like(x).copy_(x);
}

namespace {

// ---- by kernels --------------------------------------------------------------------------------

template <const FewbitBackend& backend>
at::Tensor stepwise_codes(const at::Tensor& x, at::ArrayRef<double> borders, bool even) {
  check_float_dtype(x, "stepwise_codes");
  const kernels::StepLookup steps = lookup_of_borders("stepwise_codes", borders, even);
  at::Tensor codes = empty_codes(x, steps.bits);
  backend.pack_codes(dense_like_result(x), steps, codes);
  return codes;
}

// `strides` are those of the tensor whose storage order the codes have.
template <const FewbitBackend& backend>
at::Tensor stepwise_backward(const at::Tensor& grad, const at::Tensor& codes,
                             at::ArrayRef<double> levels, at::IntArrayRef strides) {
  constexpr const char* kOp = "stepwise_backward";
  const kernels::StepLookup steps = checked_levels(kOp, grad, codes, levels);
  at::Tensor result = at::empty_strided(grad.sizes(), strides, grad.options());
  check(result.is_non_overlapping_and_dense(), kOp, "strides of a dense tensor", strides);
  const at::Tensor dense = grad.strides() == strides ? grad : result.copy_(grad);
  backend.multiply_levels(dense, codes, steps, result);
  return result;
}

template <const FewbitBackend& backend>
void stepwise_backward_(at::Tensor& grad, const at::Tensor& codes, at::ArrayRef<double> levels) {
  constexpr const char* kOp = "stepwise_backward_";
  const kernels::StepLookup steps = checked_levels(kOp, grad, codes, levels);
  check(grad.is_non_overlapping_and_dense(), kOp, "a dense gradient", grad.strides());
  backend.multiply_levels(grad, codes, steps, grad);
}

template <const FewbitBackend& backend>
at::Tensor invertible_backward(const at::Tensor& grad, const at::Tensor& y, const at::Tensor& codes,
                               std::string_view name) {
  check_invertible("invertible_backward", grad, y, codes);
  check(y.is_non_overlapping_and_dense(), "invertible_backward", "a dense output", y.strides());
  at::Tensor result = at::empty_like(y);
  const at::Tensor dense = grad.strides() == y.strides() ? grad : result.copy_(grad);
  backend.multiply_slopes(dense, y, codes, name, result);
  return result;
}

template <const FewbitBackend& backend>
void invertible_backward_(at::Tensor& grad, const at::Tensor& y, const at::Tensor& codes,
                          std::string_view name) {
  check_invertible("invertible_backward_", grad, y, codes);
  check(y.is_non_overlapping_and_dense() && grad.strides() == y.strides(), "invertible_backward_",
        "a dense output and a gradient with its strides", grad.strides());
  backend.multiply_slopes(grad, y, codes, name, grad);
}

template <const FewbitBackend& backend>
void register_ops(torch::Library& m) {
  m.impl("stepwise_codes", ValueErrors<&stepwise_codes<backend>>::call);
  m.impl("stepwise_backward", ValueErrors<&stepwise_backward<backend>>::call);
  m.impl("stepwise_backward_", ValueErrors<&stepwise_backward_<backend>>::call);
  m.impl("invertible_backward", ValueErrors<&invertible_backward<backend>>::call);
  m.impl("invertible_backward_", ValueErrors<&invertible_backward_<backend>>::call);
}

// ---- shapes, for tracing -----------------------------------------------------------------------

std::tuple<at::Tensor, at::Tensor> fewbit_forward_meta(const at::Tensor& x, std::string_view name,
                                                       at::ArrayRef<double> params,
                                                       at::ArrayRef<double> borders, bool even) {
  constexpr const char* kOp = "fewbit_forward";
  check_float_dtype(x, kOp);
  const Activation activation(kOp, name, params);
  return {at::empty_like(x), empty_codes(x, lookup_of_borders(kOp, borders, even).bits)};
}

at::Tensor fewbit_forward_inplace_meta(at::Tensor& x, std::string_view name,
                                       at::ArrayRef<double> params, at::ArrayRef<double> borders,
                                       bool even) {
  return std::get<1>(fewbit_forward_meta(x, name, params, borders, even));
}

at::Tensor stepwise_codes_meta(const at::Tensor& x, at::ArrayRef<double> borders, bool even) {
  check_float_dtype(x, "stepwise_codes");
  return empty_codes(x, lookup_of_borders("stepwise_codes", borders, even).bits);
}

at::Tensor stepwise_backward_meta(const at::Tensor& grad, const at::Tensor& codes,
                                  at::ArrayRef<double> levels, c10::SymIntArrayRef strides) {
  checked_levels("stepwise_backward", grad, codes, levels);
  return at::empty_strided_symint(grad.sym_sizes(), strides, grad.options());
}

void stepwise_backward_inplace_meta(at::Tensor& grad, const at::Tensor& codes,
                                    at::ArrayRef<double> levels) {
  checked_levels("stepwise_backward_", grad, codes, levels);
}

at::Tensor invertible_backward_meta(const at::Tensor& grad, const at::Tensor& y,
                                    const at::Tensor& codes, std::string_view) {
  check_invertible("invertible_backward", grad, y, codes);
  return at::empty_like(y);
}

void invertible_backward_inplace_meta(at::Tensor& grad, const at::Tensor& y,
                                      const at::Tensor& codes, std::string_view) {
  check_invertible("invertible_backward_", grad, y, codes);
}

}  // namespace

void register_fewbit_on_device(torch::Library& m) { register_ops<kFewbitOnDevice>(m); }

TORCH_LIBRARY_IMPL(slimgrad, CPU, m) { register_ops<kFewbitOnCpu>(m); }
TORCH_LIBRARY_IMPL(slimgrad, Meta, m) {
  m.impl("fewbit_forward", ValueErrors<&fewbit_forward_meta>::call);
  m.impl("fewbit_forward_", ValueErrors<&fewbit_forward_inplace_meta>::call);
  m.impl("stepwise_codes", ValueErrors<&stepwise_codes_meta>::call);
  m.impl("stepwise_backward", ValueErrors<&stepwise_backward_meta>::call);
  m.impl("stepwise_backward_", ValueErrors<&stepwise_backward_inplace_meta>::call);
  m.impl("invertible_backward", ValueErrors<&invertible_backward_meta>::call);
  m.impl("invertible_backward_", ValueErrors<&invertible_backward_inplace_meta>::call);
}

}  // namespace slimgrad::torch_ops
