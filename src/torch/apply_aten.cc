// The specification of kernels/apply_plan.h and the draws of base/rng.h in ATen's operators, for
// devices without a kernel of their own.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <array>

#include "base/rng.h"
#include "codecs/plan.h"
#include "torch/apply.h"
#include "torch/checks.h"

namespace slimgrad::torch_ops {
namespace {

constexpr std::int64_t kWord = 0xffffffff;

at::Tensor operator>>(const at::Tensor& x, int count) { return x.bitwise_right_shift(count); }
at::Tensor operator<<(const at::Tensor& x, int count) { return x.bitwise_left_shift(count); }

// ---- draws: tensors of int64 that hold 32-bit words
// ----------------------------------------------

std::array<at::Tensor, 4> philox_words(const at::Tensor& block, std::uint64_t stream,
                                       std::uint64_t seed) {
  at::Tensor c0 = block & kWord, c1 = (block >> 32) & kWord;
  at::Tensor c2 = at::full_like(block, static_cast<std::int64_t>(stream & kWord));
  at::Tensor c3 = at::full_like(block, static_cast<std::int64_t>(stream >> 32));
  auto key0 = static_cast<std::uint32_t>(seed), key1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    // The product may wrap to a negative number: its bits are right.
    const at::Tensor product0 = c0 * static_cast<std::int64_t>(kPhiloxMultiplier0);
    const at::Tensor product1 = c2 * static_cast<std::int64_t>(kPhiloxMultiplier1);
    c0 = ((product1 >> 32) & kWord) ^ c1 ^ static_cast<std::int64_t>(key0);
    c1 = product1 & kWord;
    c2 = ((product0 >> 32) & kWord) ^ c3 ^ static_cast<std::int64_t>(key1);
    c3 = product0 & kWord;
    key0 += kPhiloxWeyl0;
    key1 += kPhiloxWeyl1;
  }
  return {c0, c1, c2, c3};
}

at::Tensor draw(const at::Tensor& index, const RandomStream& random) {
  const at::Tensor block = (index >> 5) * 4 + ((index & 7) >> 1);
  const auto words = philox_words(block, random.stream, random.seed);
  const at::Tensor is_odd = (index & 1) != 0;
  const at::Tensor word = at::where((index & 16) != 0, at::where(is_odd, words[3], words[2]),
                                    at::where(is_odd, words[1], words[0]));
  return at::where((index & 8) != 0, word >> 16, word & 0xffff);
}

// RandomStream::happens. Lanes whose probability is not in [0, 1] give anything.
at::Tensor happens(const at::Tensor& probability, const at::Tensor& index,
                   const RandomStream& random) {
  const at::Tensor in_range = (probability >= 0) & (probability <= 1);
  const at::Tensor scaled = at::where(in_range, probability, 0.0) * 0x1p16;
  const at::Tensor leading = scaled.to(at::kLong);
  const at::Tensor r = draw(index, random);
  const at::Tensor rest = ((scaled - leading.to(at::kFloat)) * 0x1p63).to(at::kLong);
  const auto words = philox_words(index, random.stream | kRefinement, random.seed);
  const at::Tensor refinement = (words[0] << 31) | (words[1] >> 1);
  return (r < leading) | ((r == leading) & (refinement < rest));
}

// ---- values: tensors of float32
// --------------------------------------------------------------------

// A tensor on the device rather than a number: some devices divide by a number through its inverse.
at::Tensor divided(const at::Tensor& x, float divisor) {
  return x / at::full({}, divisor, x.options());
}

at::Tensor prune_aten(const at::Tensor& x, float threshold, const at::Tensor& index,
                      std::uint64_t seed, at::Tensor& at_threshold) {
  const at::Tensor magnitude = x.abs();
  // Not "<=": a NaN stays, too.
  const at::Tensor pruned = magnitude <= threshold;
  const RandomStream random(seed, Stream::kPrune);
  const at::Tensor reaches = pruned & happens(divided(magnitude, threshold), index, random);
  at_threshold = reaches.sum();
  const at::Tensor reached = at::full_like(x, threshold).copysign(x);
  return at::where(reaches, reached, at::where(pruned, at::zeros_like(x), x));
}

// round_to_grid(): magnitudes at scale 1.
at::Tensor round_aten(const at::Tensor& x, const kernels::Grid& grid, const at::Tensor& index,
                      std::uint64_t seed) {
  const RandomStream random(seed, Stream::kRound);
  const at::Tensor quotient = divided(x.abs(), grid.scale);
  const at::Tensor bits = quotient.view(at::kInt);
  const at::Tensor is_below = bits < static_cast<std::int64_t>(grid.smallest_bits);
  const std::int64_t step = std::int64_t{1} << grid.dropped_bits;
  const at::Tensor fraction = bits & (step - 1);
  const at::Tensor lower = bits - fraction;
  at::Tensor up;
  if (grid.stochastic_rounding) {
    up = happens(fraction.to(at::kFloat) / static_cast<double>(step), index, random);
  } else {
    const at::Tensor is_odd =
        ((bits >> grid.dropped_bits) & 1) != static_cast<std::int64_t>(grid.parity);
    up = (fraction > step / 2) | ((fraction == step / 2) & is_odd);
  }
  at::Tensor smallest = at::zeros_like(bits);
  if (grid.stochastic_underflow)
    smallest = happens(quotient * grid.underflow_factor, index, random).to(at::kInt) *
               static_cast<std::int64_t>(grid.smallest_bits);
  const at::Tensor rounded = at::where(is_below, smallest, lower + up.to(at::kInt) * step);
  return rounded.clamp_max(static_cast<std::int64_t>(grid.top_bits)).view(at::kFloat);
}

// As is_dense() and the header say.
at::Tensor element_indices(const at::Tensor& x) {
  const at::Tensor index = at::arange(x.numel(), x.options().dtype(at::kLong));
  return is_dense(x) ? index.as_strided(x.sizes(), x.strides()) : index.view(x.sizes());
}

ValueType value_type(at::ScalarType type) {
  if (type == at::kBFloat16) return ValueType::kBFloat16;
  return type == at::kHalf ? ValueType::kFloat16 : ValueType::kFloat32;
}

}  // namespace

at::Tensor apply_aten(const Application& application, const at::Tensor& x, at::Tensor* counts) {
  const auto& [op, threshold, quantizer, seed] = application;
  check_float_dtype(x, op);
  const ValueType type = value_type(x.scalar_type());
  const at::Tensor index = element_indices(x);
  at::Tensor result = x.to(at::kFloat);
  at::Tensor at_threshold = at::zeros({}, index.options());
  if (threshold) {
    const float limit = make_threshold(op, *threshold, type);
    if (limit > 0) result = prune_aten(result, limit, index, seed, at_threshold);
  }
  if (quantizer) {
    const kernels::Grid grid = make_grid(op, *quantizer, type);
    const at::Tensor rounded = round_aten(result, grid, index, seed);
    const at::Tensor product = (rounded * grid.scale).copysign(result);
    result = at::where(rounded == 0, at::zeros_like(result), product);
  }
  const at::Tensor is_nonfinite = ~x.isfinite();
  if (counts != nullptr)
    *counts = at::stack({((result == 0) & ~is_nonfinite).sum(), at_threshold, is_nonfinite.sum()});
  result = at::where(is_nonfinite, x, result.to(x.scalar_type()));
  return is_dense(x) ? result : result.contiguous();
}

at::Tensor encode_aten(const Application& application, const at::Tensor& x) {
  const auto& [op, threshold, quantizer, seed] = application;
  check_float_dtype(x, op);
  const kernels::Grid grid = make_grid(op, *quantizer, value_type(x.scalar_type()));
  const at::Tensor values = x.to(at::kFloat).contiguous();
  const at::Tensor rounded = round_aten(values, grid, element_indices(values), seed);
  const at::Tensor code = (rounded.view(at::kInt) >> grid.dropped_bits).to(at::kLong) -
                          static_cast<std::int64_t>(grid.code_offset);
  const at::Tensor sign = values.signbit().to(at::kLong) << (31 - grid.sign_shift);
  return at::where(rounded == 0, at::zeros_like(code), code | sign);
}

}  // namespace slimgrad::torch_ops
