// The functions of apply_plan.h on vectors, for one CPU target. Included once per target.
//
// Vectors have at most eight lanes, which is what a tile of draws is laid out for.
#if defined(SLIMGRAD_KERNELS_APPLY_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLIMGRAD_KERNELS_APPLY_INL_H_
#undef SLIMGRAD_KERNELS_APPLY_INL_H_
#else
#define SLIMGRAD_KERNELS_APPLY_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/apply_plan.h"
#include "kernels/half_float.h"
#include "kernels/philox-inl.h"

HWY_BEFORE_NAMESPACE();
namespace slimgrad::kernels {
namespace HWY_NAMESPACE {

using F32 = hn::CappedTag<float, 8>;
using U32 = hn::RebindToUnsigned<F32>;
using I32 = hn::RebindToSigned<F32>;
using U16 = hn::Rebind<std::uint16_t, F32>;
using Floats = hn::Vec<F32>;
using Words = hn::Vec<U32>;
using Integers = hn::Vec<I32>;
using Mask = hn::Mask<I32>;

HWY_INLINE Integers splat(std::uint32_t bits) {
  return hn::Set(I32(), static_cast<std::int32_t>(bits));
}
HWY_INLINE Floats as_floats(Integers bits) { return hn::BitCast(F32(), bits); }
HWY_INLINE Integers as_bits(Floats x) { return hn::BitCast(I32(), x); }

// ---- loading and storing: half_float.h on vectors
// -------------------------------------------------

HWY_INLINE Integers load(const float* from) { return as_bits(hn::LoadU(F32(), from)); }

HWY_INLINE Integers load(const BFloat16Bits* from) {
  const auto half = hn::LoadU(U16(), &from->bits);
  return hn::BitCast(I32(), hn::ShiftLeft<16>(hn::PromoteTo(U32(), half)));
}

HWY_INLINE Integers load(const Float16Bits* from) {
  const Integers half = hn::BitCast(I32(), hn::PromoteTo(U32(), hn::LoadU(U16(), &from->bits)));
  const Integers magnitude = hn::And(half, splat(0x7fff));
  const Integers rebias = splat(112u << 23);
  const Integers normal = hn::Add(hn::ShiftLeft<13>(magnitude), rebias);
  const Mask is_nonfinite = hn::Gt(magnitude, splat(0x7bff));
  const Integers large = hn::Add(normal, hn::IfThenElseZero(is_nonfinite, rebias));
  const Floats subnormal = hn::Mul(hn::ConvertTo(F32(), magnitude), hn::Set(F32(), 0x1p-24f));
  const Mask is_subnormal = hn::Lt(magnitude, splat(0x0400));
  const Integers sign = hn::ShiftLeft<16>(hn::And(half, splat(0x8000)));
  return hn::Or(sign, hn::IfThenElse(is_subnormal, as_bits(subnormal), large));
}

HWY_INLINE void store(Integers bits, float* to) { hn::StoreU(as_floats(bits), F32(), to); }

HWY_INLINE void store(Integers bits, BFloat16Bits* to) {
  const U32 u32;
  const Words words = hn::BitCast(u32, bits);
  const Words odd = hn::And(hn::ShiftRight<16>(words), hn::Set(u32, 1));
  const Words rounded = hn::ShiftRight<16>(hn::Add(hn::Add(words, hn::Set(u32, 0x7fff)), odd));
  hn::StoreU(hn::DemoteTo(U16(), hn::BitCast(I32(), rounded)), U16(), &to->bits);
}

HWY_INLINE void store(Integers bits, Float16Bits* to) {
  const Integers magnitude = hn::And(bits, splat(~kSignMask));
  const Integers nonfinite = hn::ShiftRight<13>(hn::Sub(magnitude, splat(224u << 23)));
  const Integers subnormal =
      hn::Sub(as_bits(hn::Add(as_floats(magnitude), hn::Set(F32(), 0.5f))), splat(126u << 23));
  const Integers odd = hn::And(hn::ShiftRight<13>(magnitude), splat(1));
  const Integers normal = hn::ShiftRight<13>(
      hn::Add(hn::Add(hn::Sub(magnitude, splat(112u << 23)), splat(0xfff)), odd));
  Integers half = hn::IfThenElse(hn::Lt(magnitude, splat(113u << 23)), subnormal, normal);
  half = hn::IfThenElse(hn::Gt(magnitude, splat(kInfinityBits - 1)), nonfinite, half);
  const Integers sign = hn::And(hn::ShiftRight<16>(bits), splat(0x8000));
  hn::StoreU(hn::DemoteTo(U16(), hn::Or(sign, half)), U16(), &to->bits);
}

// ---- decisions
// --------------------------------------------------------------------------------------

// happens_scaled() for the lanes whose leading bits decide nothing. Once in some thousand vectors.
HWY_NOINLINE Mask refine(Mask decided, Mask undecided, Floats scaled, const RandomStream& random,
                         std::uint64_t index) {
  HWY_ALIGN float scaled_lanes[hn::MaxLanes(F32())];
  HWY_ALIGN std::int32_t undecided_lanes[hn::MaxLanes(I32())];
  HWY_ALIGN std::int32_t happens[hn::MaxLanes(I32())];
  hn::Store(scaled, F32(), scaled_lanes);
  hn::Store(hn::VecFromMask(I32(), undecided), I32(), undecided_lanes);
  hn::Store(hn::VecFromMask(I32(), decided), I32(), happens);
  for (std::size_t lane = 0; lane < hn::Lanes(I32()); ++lane)
    if (undecided_lanes[lane] != 0)
      happens[lane] = random.happens_scaled(index + lane, scaled_lanes[lane]) ? -1 : 0;
  return hn::MaskFromVec(hn::Load(I32(), happens));
}

// RandomStream::happens_scaled, lane by lane. The leading bits of `scaled` are its integer part, so
// that with d = scaled - r they are above r where d >= 1 and equal to it where 0 <= d < 1; there d
// is exact. Lanes that are not in [0, 2^16] give anything.
HWY_INLINE Mask happens(Floats scaled, const float* draws, const RandomStream& random,
                        std::uint64_t index) {
  const Floats difference = hn::Sub(scaled, hn::Load(F32(), draws));
  const auto above = hn::Ge(difference, hn::Set(F32(), 1.0f));
  const auto not_below = hn::Ge(difference, hn::Zero(F32()));
  const Mask decided = hn::RebindMask(I32(), above);
  const Mask undecided = hn::RebindMask(I32(), hn::AndNot(above, not_below));
  if (HWY_UNLIKELY(!hn::AllFalse(I32(), undecided)))
    return refine(decided, undecided, scaled, random, index);
  return decided;
}

// ---- pruning
// ------------------------------------------------------------------------------------------

HWY_INLINE Integers prune(Integers x, Floats threshold, const float* draws,
                          const RandomStream& random, std::uint64_t index,
                          std::uint64_t& at_threshold) {
  const Integers magnitude = hn::And(x, splat(~kSignMask));
  const Mask stays = hn::Gt(magnitude, as_bits(threshold));
  const Floats probability = hn::Div(as_floats(magnitude), threshold);
  const Mask up = happens(hn::Mul(probability, hn::Set(F32(), 0x1p16f)), draws, random, index);
  const Mask reaches = hn::AndNot(stays, up);
  at_threshold += hn::CountTrue(I32(), reaches);
  const Integers pruned =
      hn::IfThenElseZero(reaches, hn::Or(hn::Xor(x, magnitude), as_bits(threshold)));
  return hn::IfThenElse(stays, x, pruned);
}

// ---- quantizing
// -----------------------------------------------------------------------------------------

// What a plan does besides pruning; each has a loop of its own.
enum class Mode { kNothing, kNearest, kNearestWithDraws, kStochastic };

HWY_INLINE Mode mode_of(const Plan& plan) {
  if (!plan.quantizes) return Mode::kNothing;
  if (plan.grid.stochastic_rounding) return Mode::kStochastic;
  return plan.grid.stochastic_underflow ? Mode::kNearestWithDraws : Mode::kNearest;
}

// A Grid, spread over the lanes once for all values.
struct GridVectors {
  Floats scale, inverse_scale;
  Floats scaled_underflow_factor, scaled_unit;  // probabilities times 2^16
  Integers smallest, top, step, fraction_mask, nearly_half, parity, code_offset;
  int dropped_bits, sign_shift;
  bool divides;

  HWY_INLINE explicit GridVectors(const Grid& grid) {
    const std::uint32_t one_step = 1u << grid.dropped_bits;
    scale = hn::Set(F32(), grid.scale);
    inverse_scale = hn::Set(F32(), grid.inverse_scale);
    scaled_underflow_factor = hn::Set(F32(), grid.underflow_factor * 0x1p16f);
    scaled_unit = hn::Set(F32(), 0x1p16f / static_cast<float>(one_step));
    smallest = splat(grid.smallest_bits);
    top = splat(grid.top_bits);
    step = splat(one_step);
    fraction_mask = splat(one_step - 1);
    nearly_half = splat(one_step / 2 - 1);
    parity = splat(grid.parity);
    code_offset = splat(grid.code_offset);
    dropped_bits = grid.dropped_bits;
    sign_shift = grid.sign_shift;
    divides = grid.inverse_scale == 0;
  }
};

HWY_INLINE Integers round_nearest(Integers bits, const GridVectors& grid) {
  const Integers last_bit = hn::And(hn::ShiftRightSame(bits, grid.dropped_bits), splat(1));
  const Integers odd = hn::Xor(last_bit, grid.parity);
  return hn::AndNot(grid.fraction_mask, hn::Add(hn::Add(bits, grid.nearly_half), odd));
}

// round_to_grid(); `magnitude` is |x|.
template <Mode mode>
HWY_INLINE Integers round_magnitude(Integers magnitude, const GridVectors& grid, const float* draws,
                                    const RandomStream& random, std::uint64_t index) {
  const Floats quotient = grid.divides ? hn::Div(as_floats(magnitude), grid.scale)
                                       : hn::Mul(as_floats(magnitude), grid.inverse_scale);
  const Integers bits = as_bits(quotient);
  const Mask is_below = hn::Gt(grid.smallest, bits);
  Integers rounded;
  if constexpr (mode == Mode::kNearest) {
    rounded = hn::IfThenZeroElse(is_below, round_nearest(bits, grid));
  } else {
    const auto below_floats = hn::RebindMask(F32(), is_below);
    const Floats underflow = hn::Mul(quotient, grid.scaled_underflow_factor);
    if constexpr (mode == Mode::kNearestWithDraws) {
      const Mask up = happens(hn::IfThenElseZero(below_floats, underflow), draws, random, index);
      rounded = hn::IfThenElse(is_below, hn::IfThenElseZero(up, grid.smallest),
                               round_nearest(bits, grid));
    } else {
      const Integers fraction = hn::And(bits, grid.fraction_mask);
      const Floats scaled = hn::IfThenElse(
          below_floats, underflow, hn::Mul(hn::ConvertTo(F32(), fraction), grid.scaled_unit));
      const Mask up = happens(scaled, draws, random, index);
      const Integers lower = hn::IfThenZeroElse(is_below, hn::Sub(bits, fraction));
      const Integers increment = hn::IfThenElse(is_below, grid.smallest, grid.step);
      rounded = hn::Add(lower, hn::IfThenElseZero(up, increment));
    }
  }
  return hn::Min(rounded, grid.top);
}

template <Mode mode>
HWY_INLINE Integers quantize(Integers x, const GridVectors& grid, const float* draws,
                             const RandomStream& random, std::uint64_t index) {
  const Integers magnitude = hn::And(x, splat(~kSignMask));
  const Mask is_nonfinite = hn::Gt(magnitude, splat(kInfinityBits - 1));
  const Integers rounded = round_magnitude<mode>(magnitude, grid, draws, random, index);
  const Integers product = as_bits(hn::Mul(as_floats(rounded), grid.scale));
  const Mask is_zero = hn::Eq(rounded, hn::Zero(I32()));
  const Integers finite = hn::IfThenZeroElse(is_zero, hn::Or(hn::Xor(x, magnitude), product));
  return hn::IfThenElse(is_nonfinite, x, finite);
}

template <Mode mode>
HWY_INLINE Integers encode(Integers x, const GridVectors& grid, const float* draws,
                           const RandomStream& random, std::uint64_t index) {
  const Integers magnitude = hn::And(x, splat(~kSignMask));
  const Mask is_nan = hn::Gt(magnitude, splat(kInfinityBits));
  const Integers rounded = round_magnitude<mode>(magnitude, grid, draws, random, index);
  const Mask is_zero = hn::Or(is_nan, hn::Eq(rounded, hn::Zero(I32())));
  const Integers code = hn::Sub(hn::ShiftRightSame(rounded, grid.dropped_bits), grid.code_offset);
  const Words sign = hn::ShiftRightSame(hn::BitCast(U32(), hn::Xor(x, magnitude)), grid.sign_shift);
  return hn::IfThenZeroElse(is_zero, hn::Or(hn::BitCast(I32(), sign), code));
}

// ---- loops
// --------------------------------------------------------------------------------------------

// Calls step(in, out, index) for groups of kDrawnElements values; the last one is padded with
// zeros, which pruning and quantizing leave as zeros, and which are taken off the count again.
template <typename In, typename Out, typename Step>
HWY_INLINE void for_groups(const In* in, Out* out, std::size_t num_values, ApplyCounts& counts,
                           const Step& step) {
  std::size_t i = 0;
  for (; i + kDrawnElements <= num_values; i += kDrawnElements) step(in + i, out + i, i);
  if (i < num_values) {
    In padded_in[kDrawnElements] = {};
    Out padded_out[kDrawnElements];
    std::copy(in + i, in + num_values, padded_in);
    step(padded_in, padded_out, i);
    std::copy(padded_out, padded_out + (num_values - i), out + i);
    counts.zeros -= i + kDrawnElements - num_values;
  }
}

HWY_INLINE std::uint64_t count_nonfinite(Integers x) {
  return hn::CountTrue(I32(), hn::Gt(hn::And(x, splat(~kSignMask)), splat(kInfinityBits - 1)));
}

HWY_INLINE std::uint64_t count_zeros(Integers x) {
  return hn::CountTrue(I32(), hn::Eq(hn::Add(x, x), hn::Zero(I32())));  // The sign is shifted out.
}

template <bool prunes, Mode mode, typename T>
HWY_NOINLINE ApplyCounts apply_loop(const Plan& plan, const T* in, T* out, std::size_t num_values,
                                    std::uint64_t first_index) {
  constexpr bool kRoundDraws = mode == Mode::kNearestWithDraws || mode == Mode::kStochastic;
  const RandomStream prune_random(plan.seed, Stream::kPrune);
  const RandomStream round_random(plan.seed, Stream::kRound);
  const Drawing prune_drawing(prune_random);
  const Drawing round_drawing(round_random);
  const Floats threshold = hn::Set(F32(), plan.threshold);
  const GridVectors grid(plan.grid);
  ApplyCounts counts;
  for_groups(in, out, num_values, counts, [&](const T* from, T* to, std::size_t offset) HWY_ATTR {
    const std::uint64_t index = first_index + offset;
    HWY_ALIGN float prune_draws[kDrawnElements];
    HWY_ALIGN float round_draws[kDrawnElements];
    if constexpr (prunes) prune_drawing.fill(index, prune_draws);
    if constexpr (kRoundDraws) round_drawing.fill(index, round_draws);
    std::uint64_t zeros = 0, at_threshold = 0, nonfinite = 0;
    for (std::size_t i = 0; i < kDrawnElements; i += hn::Lanes(I32())) {
      Integers x = load(from + i);
      nonfinite += count_nonfinite(x);
      if constexpr (prunes)
        x = prune(x, threshold, prune_draws + i, prune_random, index + i, at_threshold);
      if constexpr (mode != Mode::kNothing)
        x = quantize<mode>(x, grid, round_draws + i, round_random, index + i);
      zeros += count_zeros(x);
      store(x, to + i);
    }
    counts += {zeros, at_threshold, nonfinite};
  });
  return counts;
}

template <Mode mode, typename T>
HWY_NOINLINE ApplyCounts encode_loop(const Plan& plan, const T* in, std::uint8_t* codes,
                                     std::size_t num_values, std::uint64_t first_index) {
  const RandomStream random(plan.seed, Stream::kRound);
  const Drawing drawing(random);
  const GridVectors grid(plan.grid);
  const hn::Rebind<std::uint8_t, I32> u8;
  ApplyCounts counts;
  for_groups(in, codes, num_values, counts,
             [&](const T* from, std::uint8_t* to, std::size_t offset) HWY_ATTR {
               const std::uint64_t index = first_index + offset;
               HWY_ALIGN float draws[kDrawnElements];
               if constexpr (mode != Mode::kNearest) drawing.fill(index, draws);
               std::uint64_t zeros = 0, nonfinite = 0;
               for (std::size_t i = 0; i < kDrawnElements; i += hn::Lanes(I32())) {
                 const Integers x = load(from + i);
                 nonfinite += count_nonfinite(x);
                 const Integers code = encode<mode>(x, grid, draws + i, random, index + i);
                 zeros += hn::CountTrue(I32(), hn::Eq(code, hn::Zero(I32())));
                 hn::StoreU(hn::DemoteTo(u8, code), u8, to + i);
               }
               counts += {zeros, 0, nonfinite};
             });
  return counts;
}

template <bool prunes, typename T>
HWY_INLINE ApplyCounts apply_by_mode(const Plan& plan, const T* in, T* out, std::size_t num_values,
                                     std::uint64_t first_index) {
  switch (mode_of(plan)) {
    case Mode::kNothing:
      return apply_loop<prunes, Mode::kNothing>(plan, in, out, num_values, first_index);
    case Mode::kNearest:
      return apply_loop<prunes, Mode::kNearest>(plan, in, out, num_values, first_index);
    case Mode::kNearestWithDraws:
      return apply_loop<prunes, Mode::kNearestWithDraws>(plan, in, out, num_values, first_index);
    default:
      return apply_loop<prunes, Mode::kStochastic>(plan, in, out, num_values, first_index);
  }
}

template <typename T>
HWY_INLINE ApplyCounts apply_values(const Plan& plan, const T* in, T* out, std::size_t num_values,
                                    std::uint64_t first_index) {
  return plan.prunes ? apply_by_mode<true>(plan, in, out, num_values, first_index)
                     : apply_by_mode<false>(plan, in, out, num_values, first_index);
}

template <typename T>
HWY_INLINE ApplyCounts encode_values(const Plan& plan, const T* in, std::uint8_t* codes,
                                     std::size_t num_values, std::uint64_t first_index) {
  switch (mode_of(plan)) {
    case Mode::kNearest:
      return encode_loop<Mode::kNearest>(plan, in, codes, num_values, first_index);
    case Mode::kNearestWithDraws:
      return encode_loop<Mode::kNearestWithDraws>(plan, in, codes, num_values, first_index);
    default:
      return encode_loop<Mode::kStochastic>(plan, in, codes, num_values, first_index);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace slimgrad::kernels
HWY_AFTER_NAMESPACE();

#endif  // include guard, once per target
