// measure for devices without a kernel of their own. The op `_measure_aten` is the same code for
// any device, so that tests can hold it against the fast one on the CPU.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <torch/library.h>

#include "torch/checks.h"
#include "torch/errors.h"
#include "torch/measure/stats_tensor.h"

namespace slimgrad::torch_ops {

namespace {

// In ATen's operators and in float64: many passes over memory,
// and a full histogram of any tensor. The result is on x's device, and nothing waits for it.
at::Tensor measure_aten(const at::Tensor& x) {
  check_float_dtype(x, "measure");
  const at::Tensor bits = x.detach().reshape(-1).to(at::kFloat).view(at::kInt) & 0x7fffffff;
  const at::Tensor is_finite = bits < 0x7f800000;
  const at::Tensor is_nonzero = is_finite & (bits != 0);
  // Through integers, as many devices flush float32 subnormals to zero.
  const at::Tensor subnormal = bits.to(at::kDouble) * 0x1p-149;
  const at::Tensor magnitude = at::where(
      is_finite, at::where(bits < 0x00800000, subnormal, bits.view(at::kFloat).to(at::kDouble)),
      0.0);
  const at::Tensor logarithm = at::where(is_nonzero, magnitude, 1.0).log();
  const at::Tensor num_finite = is_finite.sum().to(at::kDouble);
  const at::Tensor num_nonzero = is_nonzero.sum().to(at::kDouble);
  const at::Tensor log_mean = logarithm.sum() / num_nonzero.clamp_min(1);
  const at::Tensor deviation = at::where(is_nonzero, logarithm - log_mean, 0.0);
  const at::Tensor count = at::full({}, static_cast<double>(x.numel()), num_finite.options());
  // A zero in front gives the maximum of an empty tensor a value.
  const at::Tensor max_abs = at::cat({at::full({1}, 0.0, magnitude.options()), magnitude}).max();
  const at::Tensor fields = at::stack({
      count,
      num_finite - num_nonzero,
      count - num_finite,
      (num_finite - num_nonzero) / num_finite.clamp_min(1),
      log_mean,
      (deviation.square().sum() / num_nonzero.clamp_min(1)).sqrt(),
      max_abs,
      magnitude.sum() / num_finite.clamp_min(1),
      magnitude.square().sum() / num_finite.clamp_min(1),
  });
  // What is no finite non-zero value falls into one bin more, which is cut off.
  const at::Tensor bin =
      at::where(is_nonzero, bits.bitwise_right_shift(LogHistogram::kShift), LogHistogram::kNumBins);
  const at::Tensor counts =
      at::bincount(bin, {}, LogHistogram::kNumBins + 1).slice(0, 0, LogHistogram::kNumBins);
  return at::cat({fields, counts.to(at::kDouble)});
}

}  // namespace

TORCH_LIBRARY_IMPL(slimgrad, CompositeExplicitAutograd, m) {
  m.impl("measure", ValueErrors<&measure_aten>::call);
  m.impl("_measure_aten", ValueErrors<&measure_aten>::call);
}

}  // namespace slimgrad::torch_ops
