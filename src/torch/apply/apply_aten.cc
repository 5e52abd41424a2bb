// The specification of kernels/apply/loop_treatment.h and the draws of base/rng.h in ATen's
// operators, for devices without a kernel of their own.
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
#include <bit>
#include <optional>

#include "arrays/apply/loop_treatment.h"
#include "base/rng.h"
#include "torch/apply/apply.h"
#include "torch/checks.h"
#include "torch/elements.h"

namespace slimgrad::torch_ops {
namespace {

constexpr std::int64_t kWord = 0xffffffff;

at::Tensor operator>>(const at::Tensor& x, int count) { return x.bitwise_right_shift(count); }
at::Tensor operator<<(const at::Tensor& x, int count) { return x.bitwise_left_shift(count); }

// ---- draws: tensors of int64 that hold 32-bit words ------------------------------------------

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
  const auto strata = static_cast<std::int64_t>(random.strata);
  const at::Tensor tile = index >> 5;
  const at::Tensor stratum = tile % strata;
  const at::Tensor block = tile.floor_divide(strata) * 4 + ((index & 7) >> 1);
  const auto words = philox_words(block, random.stream, random.seed);
  const at::Tensor is_odd = (index & 1) != 0;
  const at::Tensor word = at::where((index & 16) != 0, at::where(is_odd, words[3], words[2]),
                                    at::where(is_odd, words[1], words[0]));
  const at::Tensor half = at::where((index & 8) != 0, word >> 16, word);
  return (half + stratum * static_cast<std::int64_t>(random.shift_of(1))) & 0xffff;
}

// RandomStream::happens_scaled. What is not in [0, 2^17] gives anything.
at::Tensor happens_scaled(const at::Tensor& any, const at::Tensor& index,
                          const RandomStream& random) {
  const at::Tensor scaled = at::where((any >= 0) & (any <= 0x1p17), any, 0.0);
  const at::Tensor leading = scaled.to(at::kLong);
  const at::Tensor r = draw(index, random);
  const at::Tensor rest = ((scaled - leading.to(at::kFloat)) * 0x1p63).to(at::kLong);
  const auto words = philox_words(index, random.stream | kRefinement, random.seed);
  const at::Tensor refinement = (words[0] << 31) | (words[1] >> 1);
  return (r < leading) | ((r == leading) & (refinement < rest));
}

// ---- values: tensors of float32 --------------------------------------------------------------

// x * inverse, or x / divisor where there is no inverse: by a tensor on the device rather than a
// number, since some devices divide by a number through its inverse.
at::Tensor divided(const at::Tensor& x, float divisor, float inverse) {
  if (inverse != 0) return x * inverse;
  return x / at::full({}, divisor, x.options());
}

// kernels::scaled_share()
at::Tensor scaled_share(const at::Tensor& magnitude, float threshold) {
  const float inverse = kernels::inverse_of(threshold);
  if (inverse != 0) return magnitude * (inverse * 0x1p16f);
  return divided(magnitude, threshold, 0) * 0x1p16;
}

struct Pruned {
  at::Tensor pruned;   // which magnitudes are up to the threshold; NaN is not
  at::Tensor share;    // scaled_share()
  at::Tensor reaches;  // which of them reach it

  Pruned(const at::Tensor& x, float threshold, const at::Tensor& index, const RandomStream& random)
      : pruned(x.abs() <= threshold),
        share(scaled_share(x.abs(), threshold)),
        reaches(pruned & happens_scaled(share, index, random)) {}
};

// round_to_grid(): magnitudes at scale 1.
at::Tensor round_aten(const at::Tensor& x, const kernels::Grid& grid, const at::Tensor& index,
                      const RandomStream& random) {
  const at::Tensor quotient = divided(x.abs(), grid.scale, grid.inverse_scale);
  const at::Tensor bits = quotient.view(at::kInt);
  const at::Tensor is_below = bits < static_cast<std::int64_t>(grid.smallest_bits);
  const std::int64_t step = std::int64_t{1} << grid.dropped_bits;
  const at::Tensor fraction = bits & (step - 1);
  const at::Tensor lower = bits - fraction;
  const auto happens = [&](const at::Tensor& probability) {
    return happens_scaled(probability * 0x1p16, index, random);
  };
  at::Tensor up;
  if (grid.stochastic_rounding) {
    up = happens(fraction.to(at::kFloat) / static_cast<double>(step));
  } else {
    const at::Tensor is_odd =
        ((bits >> grid.dropped_bits) & 1) != static_cast<std::int64_t>(grid.parity);
    up = (fraction > step / 2) | ((fraction == step / 2) & is_odd);
  }
  at::Tensor smallest = at::zeros_like(bits);
  if (grid.stochastic_underflow)
    smallest = happens(quotient * grid.underflow_factor).to(at::kInt) *
               static_cast<std::int64_t>(grid.smallest_bits);
  const at::Tensor rounded = at::where(is_below, smallest, lower + up.to(at::kInt) * step);
  return rounded.clamp_max(static_cast<std::int64_t>(grid.top_bits)).view(at::kFloat);
}

// prune_quantize_value(), before it is scaled.
at::Tensor prune_round_aten(const at::Tensor& x, float threshold, const Pruned& pruned,
                            const kernels::Grid& grid, const at::Tensor& index,
                            const RandomStream& random) {
  const kernels::Neighbours reached = kernels::neighbours(threshold, grid);
  const auto value = [](std::uint32_t bits) { return std::bit_cast<float>(bits); };
  at::Tensor at_threshold = at::full_like(x, value(reached.lower));
  if (reached.probability > 0) {
    const at::Tensor further = happens_scaled(pruned.share * reached.probability, index, random);
    at_threshold = at::where(further, at::full_like(x, value(reached.upper)), at_threshold);
  }
  const at::Tensor small = at::where(pruned.reaches, at_threshold, at::zeros_like(x));
  return at::where(pruned.pruned, small, round_aten(x, grid, index, random));
}

// As is_dense() and the header say.
at::Tensor element_indices(const at::Tensor& x) {
  const at::Tensor index = at::arange(x.numel(), x.options().dtype(at::kLong));
  return is_dense(x) ? index.as_strided(x.sizes(), x.strides()) : index.view(x.sizes());
}

}  // namespace

at::Tensor apply_aten(const char* op, const Treatment& treatment, const at::Tensor& x,
                      at::Tensor* counts) {
  check_float_dtype(x, op);
  if (treatment.drops) {
    const at::Tensor is_small =
        x.abs().lt(make_threshold(op, treatment.threshold, dtype_of(x.scalar_type())));
    return apply_aten(op, {.quantizer = treatment.quantizer, .seed = treatment.seed},
                      at::where(is_small, at::zeros({}, x.options()), x), counts);
  }
  const DType type = dtype_of(x.scalar_type());
  const at::Tensor index = element_indices(x);
  at::Tensor result = x.to(at::kFloat);
  at::Tensor at_threshold = at::zeros({}, index.options());
  const float limit = make_threshold(op, treatment.threshold, type);
  const RandomStream random(treatment.seed, limit > 0 ? Stream::kPrune : Stream::kRound);
  std::optional<Pruned> pruned;
  if (limit > 0) {
    pruned.emplace(result, limit, index, random);
    at_threshold = pruned->reaches.sum();
  }
  if (treatment.quantizer) {
    const kernels::Grid grid = make_grid(op, *treatment.quantizer, type);
    const at::Tensor rounded = pruned
                                   ? prune_round_aten(result, limit, *pruned, grid, index, random)
                                   : round_aten(result, grid, index, random);
    const at::Tensor product = (rounded * grid.scale).copysign(result);
    result = at::where(rounded == 0, at::zeros_like(result), product);
  } else if (pruned) {
    const at::Tensor reached = at::full_like(result, limit).copysign(result);
    const at::Tensor small = at::where(pruned->reaches, reached, at::zeros_like(result));
    result = at::where(pruned->pruned, small, result);
  }
  const at::Tensor is_nonfinite = ~x.isfinite();
  if (counts != nullptr)
    *counts = at::stack({((result == 0) & ~is_nonfinite).sum(), at_threshold, is_nonfinite.sum()});
  result = at::where(is_nonfinite, x, result.to(x.scalar_type()));
  return is_dense(x) ? result : result.contiguous();
}

at::Tensor encode_aten(const char* op, const Treatment& treatment, const at::Tensor& x) {
  check_float_dtype(x, op);
  const kernels::Grid grid = make_grid(op, *treatment.quantizer, dtype_of(x.scalar_type()));
  const at::Tensor values = x.to(at::kFloat).contiguous();
  const at::Tensor rounded = round_aten(values, grid, element_indices(values),
                                        RandomStream(treatment.seed, Stream::kRound));
  const at::Tensor code = (rounded.view(at::kInt) >> grid.dropped_bits).to(at::kLong) -
                          static_cast<std::int64_t>(grid.code_offset);
  const at::Tensor sign = values.signbit().to(at::kLong) << (31 - grid.sign_shift);
  return at::where(rounded == 0, at::zeros_like(code), code | sign);
}

}  // namespace slimgrad::torch_ops
