// The functions of loop_treatment.h on vectors, for one CPU target. Included once per target.
//
// Vectors have at most eight lanes, which is what a tile of draws is laid out for.
#if defined(SLIMGRAD_KERNELS_APPLY_APPLY_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLIMGRAD_KERNELS_APPLY_APPLY_INL_H_
#undef SLIMGRAD_KERNELS_APPLY_APPLY_INL_H_
#else
#define SLIMGRAD_KERNELS_APPLY_APPLY_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/apply/apply.h"
#include "kernels/apply/loop_treatment.h"
#include "kernels/half_float-inl.h"
#include "kernels/half_float.h"
#include "kernels/philox-inl.h"

HWY_BEFORE_NAMESPACE();
namespace slimgrad::kernels {
namespace HWY_NAMESPACE {

using F32 = hn::CappedTag<float, 8>;
using U32 = hn::RebindToUnsigned<F32>;
using I32 = hn::RebindToSigned<F32>;
using Floats = hn::Vec<F32>;
using Words = hn::Vec<U32>;
using Integers = hn::Vec<I32>;
using Mask = hn::Mask<I32>;

HWY_INLINE Integers splat(std::uint32_t bits) {
  return hn::Set(I32(), static_cast<std::int32_t>(bits));
}
HWY_INLINE Floats as_floats(Integers bits) { return hn::BitCast(F32(), bits); }
HWY_INLINE Integers as_bits(Floats x) { return hn::BitCast(I32(), x); }

template <typename T>
HWY_INLINE Integers load(const T* from) {
  return as_bits(load_floats(F32(), from));
}
template <typename T>
HWY_INLINE void store(Integers bits, T* to) {
  store_float_bits(F32(), bits, to);
}

// ---- decisions -------------------------------------------------------------------------------

// RandomStream::happens_scaled, lane by lane, by the leading bits alone. Those of `scaled` are its
// integer part, so that with d = scaled - r they are above r where d >= 1, and equal to it, which
// decides nothing, where 0 <= d < 1; there d is exact. Lanes beyond 2^16 happen; negative ones and
// NaN do not.
struct Decision {
  Mask happens, undecided;
};

HWY_INLINE Decision decide(Floats scaled, Floats draws) {
  const Floats difference = hn::Sub(scaled, draws);
  const auto above = hn::Ge(difference, hn::Set(F32(), 1.0f));
  const auto not_below = hn::Ge(difference, hn::Zero(F32()));
  return {hn::RebindMask(I32(), above), hn::RebindMask(I32(), hn::AndNot(above, not_below))};
}

// A vector that has undecided lanes, Inf or NaN goes lane by lane through the specification; of
// draws that is one in some thousand.
template <typename Rule>
HWY_NOINLINE Integers apply_lanes(const Rule& rule, Integers x, std::uint64_t index,
                                  ApplyCounts& counts) {
  HWY_ALIGN std::uint32_t lanes[hn::MaxLanes(U32())];
  hn::Store(hn::BitCast(U32(), x), U32(), lanes);
  for (std::size_t lane = 0; lane < hn::Lanes(U32()); ++lane)
    lanes[lane] = rule.apply(lanes[lane], index + lane, counts);
  return hn::BitCast(I32(), hn::Load(U32(), lanes));
}

// ---- pruning ---------------------------------------------------------------------------------

// The threshold, and what the grid makes of it, spread over the lanes once for all values.
struct PruningVectors {
  Floats threshold, scaled_inverse;
  Integers reached_lower, reached_upper;
  Floats upper_probability;
  bool on_grid;

  HWY_INLINE explicit PruningVectors(const LoopTreatment& treatment) {
    const Neighbours reached = neighbours(treatment.threshold, treatment.grid);
    threshold = hn::Set(F32(), treatment.threshold);
    scaled_inverse = hn::Set(F32(), inverse_of(treatment.threshold) * 0x1p16f);
    reached_lower = splat(reached.lower);
    reached_upper = splat(reached.upper);
    upper_probability = hn::Set(F32(), reached.probability);
    on_grid = reached.probability == 0;
  }

  HWY_INLINE Mask stays(Integers magnitude) const { return hn::Gt(magnitude, as_bits(threshold)); }
  // scaled_share()
  HWY_INLINE Floats share(Integers magnitude) const {
    return hn::Mul(as_floats(magnitude), scaled_inverse);
  }
};

// ---- counting --------------------------------------------------------------------------------

// By lane; a mask is -1 where it is true. REQUIRES: fewer than 2^31 values a lane.
struct Tally {
  Integers zeros, at_threshold;

  HWY_INLINE Tally() { zeros = at_threshold = hn::Zero(I32()); }
  static HWY_INLINE void add(Mask mask, Integers& to) {
    to = hn::Sub(to, hn::VecFromMask(I32(), mask));
  }
  static HWY_INLINE std::uint64_t sum(Integers counts) {
    return static_cast<std::uint32_t>(hn::GetLane(hn::SumOfLanes(I32(), counts)));
  }
  HWY_INLINE ApplyCounts counts() const {
    return {.zeros = sum(zeros), .at_threshold = sum(at_threshold), .nonfinite = 0};
  }
};
// The most values at a time for which neither a lane nor the sum of the lanes overflows.
inline constexpr std::size_t kTallyValues = std::size_t{1} << 30;

// ---- quantizing ------------------------------------------------------------------------------

// What a treatment does besides pruning; each has a loop of its own.
enum class Mode { kNothing, kNearest, kNearestWithDraws, kStochastic };

HWY_INLINE Mode mode_of(const LoopTreatment& treatment) {
  if (!treatment.quantizes) return Mode::kNothing;
  if (treatment.grid.stochastic_rounding) return Mode::kStochastic;
  return treatment.grid.stochastic_underflow ? Mode::kNearestWithDraws : Mode::kNearest;
}

// A Grid, spread over the lanes once for all values.
struct GridVectors {
  Floats scale, inverse_scale;
  Floats scaled_underflow_factor, scaled_unit;  // probabilities times 2^16
  Integers smallest, top, step, fraction_mask, nearly_half, parity, code_offset;
  Integers code_sign;
  int dropped_bits;

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
    code_sign = splat(kSignMask >> grid.sign_shift);
  }
};

HWY_INLINE Integers round_nearest(Integers bits, const GridVectors& grid) {
  const Integers last_bit = hn::And(hn::ShiftRightSame(bits, grid.dropped_bits), splat(1));
  const Integers odd = hn::Xor(last_bit, grid.parity);
  return hn::AndNot(grid.fraction_mask, hn::Add(hn::Add(bits, grid.nearly_half), odd));
}

// neighbours(), as the lower one and the step to the upper one, for the modes that draw; where
// nothing is drawn, the result and no step. The top is not looked at.
struct Choice {
  Integers lower, step;
  Floats scaled;  // the probability of the step, times 2^16
};

template <Mode mode>
HWY_INLINE Choice choose(Integers magnitude, const GridVectors& grid) {
  const Floats quotient = hn::Mul(as_floats(magnitude), grid.inverse_scale);
  const Integers bits = as_bits(quotient);
  const Mask is_below = hn::Gt(grid.smallest, bits);
  if constexpr (mode == Mode::kNearest)
    return {hn::IfThenZeroElse(is_below, round_nearest(bits, grid)), hn::Zero(I32()),
            hn::Zero(F32())};
  const auto below_floats = hn::RebindMask(F32(), is_below);
  const Floats underflow = hn::Mul(quotient, grid.scaled_underflow_factor);
  if constexpr (mode == Mode::kNearestWithDraws)
    return {hn::IfThenZeroElse(is_below, round_nearest(bits, grid)),
            hn::IfThenElseZero(is_below, grid.smallest),
            hn::IfThenElseZero(below_floats, underflow)};
  const Integers fraction = hn::And(bits, grid.fraction_mask);
  return {hn::IfThenZeroElse(is_below, hn::Sub(bits, fraction)),
          hn::IfThenElse(is_below, grid.smallest, grid.step),
          hn::IfThenElse(below_floats, underflow,
                         hn::Mul(hn::ConvertTo(F32(), fraction), grid.scaled_unit))};
}

// The grid value for every magnitude: round_to_grid(), or with pruning prune_quantize_value()
// before it is scaled.
struct GridValues {
  Integers rounded;
  Mask at_threshold;  // by pruning
  Mask special;       // lanes that the specification has to decide

  // The compiler's own would not be compiled for the target.
  HWY_INLINE GridValues() {}
};

template <bool prunes, Mode mode>
HWY_INLINE GridValues grid_values(Integers magnitude, const PruningVectors& pruning,
                                  const GridVectors& grid, const float* draws) {
  GridValues result;
  const Choice choice = choose<mode>(magnitude, grid);
  result.special = hn::Gt(magnitude, splat(kInfinityBits - 1));
  Integers lower = choice.lower, step = choice.step;
  Mask up;
  if constexpr (prunes) {
    const Mask stays = pruning.stays(magnitude);
    const auto stays_floats = hn::RebindMask(F32(), stays);
    const Floats share = pruning.share(magnitude);
    const Floats drawn = hn::Load(F32(), draws);
    lower = hn::IfThenElseZero(stays, lower);
    step = hn::IfThenElse(stays, step, pruning.reached_lower);
    // Where nothing is drawn for it, what stays takes a step of zero.
    const Decision decision = decide(
        mode == Mode::kNearest ? share : hn::IfThenElse(stays_floats, choice.scaled, share), drawn);
    up = decision.happens;
    result.special = hn::Or(result.special, decision.undecided);
    if (mode != Mode::kNearest && HWY_UNLIKELY(!pruning.on_grid)) {
      const Floats upper_share = hn::Mul(share, pruning.upper_probability);
      const Decision further = decide(hn::IfThenZeroElse(stays_floats, upper_share), drawn);
      step = hn::IfThenElse(hn::AndNot(stays, further.happens), pruning.reached_upper, step);
      result.special = hn::Or(result.special, further.undecided);
    }
    result.at_threshold = hn::AndNot(stays, up);
  } else if constexpr (mode != Mode::kNearest) {
    const Decision decision = decide(choice.scaled, hn::Load(F32(), draws));
    up = decision.happens;
    result.special = hn::Or(result.special, decision.undecided);
  }
  if constexpr (prunes || mode != Mode::kNearest)
    lower = hn::Add(lower, hn::IfThenElseZero(up, step));
  result.rounded = hn::Min(lower, grid.top);
  return result;
}

// ---- loops -----------------------------------------------------------------------------------

// Bytes from four vectors of codes, in order. The codes of one lane go into its four bytes; then
// the bytes are transposed inside 128-bit blocks, each of which holds four lanes, and the blocks
// merged. Narrowing every vector by itself takes twice as long.
HWY_INLINE void store_codes(Integers c0, Integers c1, Integers c2, Integers c3, std::uint8_t* to) {
  const hn::Repartition<std::uint8_t, I32> u8;
  alignas(16) static constexpr std::uint8_t kTransposed[16] = {0, 4, 8,  12, 1, 5, 9,  13,
                                                               2, 6, 10, 14, 3, 7, 11, 15};
  const Integers lower = hn::Or(c0, hn::ShiftLeft<8>(c1));
  const Integers upper = hn::Or(hn::ShiftLeft<16>(c2), hn::ShiftLeft<24>(c3));
  const auto bytes = hn::BitCast(u8, hn::Or(lower, upper));
  Integers blocks =
      hn::BitCast(I32(), hn::TableLookupBytes(bytes, hn::LoadDup128(u8, kTransposed)));
  if constexpr (hn::MaxLanes(I32()) == 8) {
    alignas(32) static constexpr std::int32_t kMerged[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    blocks = hn::TableLookupLanes(blocks, hn::SetTableIndices(I32(), kMerged));
  }
  hn::StoreU(hn::BitCast(u8, blocks), u8, to);
}

// Calls run(first, num_values) for parts of at most kTallyValues, and adds up what it returns.
template <typename Run>
HWY_INLINE ApplyCounts by_tally(std::size_t num_values, const Run& run) {
  ApplyCounts counts;
  for (std::size_t first = 0; first < num_values; first += kTallyValues)
    counts += run(first, std::min(kTallyValues, num_values - first));
  return counts;
}

// Calls step(in, out, index) for groups of `group` values. The last one is padded with zeros, which
// pruning and quantizing leave as zeros; returns how many, for the count.
template <std::size_t group, typename In, typename Out, typename Step>
HWY_INLINE std::size_t for_groups(const In* in, Out* out, std::size_t num_values,
                                  const Step& step) {
  std::size_t i = 0;
  for (; i + group <= num_values; i += group) step(in + i, out + i, i);
  if (i == num_values) return 0;
  In padded_in[group] = {};
  Out padded_out[group];
  std::copy(in + i, in + num_values, padded_in);
  step(padded_in, padded_out, i);
  std::copy(padded_out, padded_out + (num_values - i), out + i);
  return i + group - num_values;
}

// One vector of values, as ValueRule says.
template <bool prunes, Mode mode>
HWY_INLINE Integers apply_vector(Integers x, const PruningVectors& pruning, const GridVectors& grid,
                                 const float* draws, const ValueRule& rule, std::uint64_t index,
                                 Tally& tally, ApplyCounts& rest) {
  const Integers magnitude = hn::And(x, splat(~kSignMask));
  const Integers sign = hn::Xor(x, magnitude);
  if constexpr (mode == Mode::kNothing) {
    Mask special = hn::Gt(magnitude, splat(kInfinityBits - 1));
    Mask vanishes = hn::Eq(magnitude, hn::Zero(I32())), at_threshold = vanishes;
    Integers result = x;
    if constexpr (prunes) {
      const Mask stays = pruning.stays(magnitude);
      const Decision decision = decide(pruning.share(magnitude), hn::Load(F32(), draws));
      special = hn::Or(special, hn::AndNot(stays, decision.undecided));
      at_threshold = hn::AndNot(stays, decision.happens);
      vanishes = hn::AndNot(stays, hn::Not(decision.happens));
      const Integers reached = hn::Or(sign, as_bits(pruning.threshold));
      result = hn::IfThenZeroElse(vanishes, hn::IfThenElse(stays, x, reached));
    }
    if (HWY_UNLIKELY(!hn::AllFalse(I32(), special))) return apply_lanes(rule, x, index, rest);
    tally.add(vanishes, tally.zeros);
    if constexpr (prunes) tally.add(at_threshold, tally.at_threshold);
    return result;
  } else {
    const GridValues value = grid_values<prunes, mode>(magnitude, pruning, grid, draws);
    if (HWY_UNLIKELY(!hn::AllFalse(I32(), value.special))) return apply_lanes(rule, x, index, rest);
    const Integers product = as_bits(hn::Mul(as_floats(value.rounded), grid.scale));
    const Mask is_zero = hn::Eq(value.rounded, hn::Zero(I32()));
    tally.add(is_zero, tally.zeros);
    if constexpr (prunes) tally.add(value.at_threshold, tally.at_threshold);
    return hn::IfThenZeroElse(is_zero, hn::Or(sign, product));
  }
}

template <bool prunes, Mode mode, typename T>
HWY_NOINLINE ApplyCounts apply_loop(const LoopTreatment& treatment, const T* in, T* out,
                                    std::size_t num_values, std::uint64_t first_index) {
  constexpr bool kDraws = prunes || mode == Mode::kNearestWithDraws || mode == Mode::kStochastic;
  using Draws = Drawing<prunes ? kPruneStrata : 1>;
  const ValueRule rule(treatment);
  Draws drawing(rule.random());
  const PruningVectors pruning(treatment);
  const GridVectors grid(treatment.grid);
  Tally tally;
  ApplyCounts rest;
  const std::size_t num_padded = for_groups<Draws::kElements>(
      in, out, num_values, [&](const T* from, T* to, std::size_t offset) HWY_ATTR {
        const std::uint64_t index = first_index + offset;
        HWY_ALIGN float draws[Draws::kElements];
        if constexpr (kDraws) drawing.fill(index, draws);
        for (std::size_t i = 0; i < Draws::kElements; i += hn::Lanes(I32()))
          store(apply_vector<prunes, mode>(load(from + i), pruning, grid, draws + i, rule,
                                           index + i, tally, rest),
                to + i);
      });
  rest += tally.counts();
  rest.zeros -= num_padded;
  return rest;
}

// One vector of codes, as CodeRule says.
template <Mode mode>
HWY_INLINE Integers encode_vector(Integers x, const PruningVectors& none, const GridVectors& grid,
                                  const float* draws, const CodeRule& rule, std::uint64_t index,
                                  Tally& tally, ApplyCounts& rest) {
  const Integers magnitude = hn::And(x, splat(~kSignMask));
  const GridValues value = grid_values<false, mode>(magnitude, none, grid, draws);
  if (HWY_UNLIKELY(!hn::AllFalse(I32(), value.special))) return apply_lanes(rule, x, index, rest);
  const Mask is_zero = hn::Eq(value.rounded, hn::Zero(I32()));
  tally.add(is_zero, tally.zeros);
  const Integers code =
      hn::Sub(hn::ShiftRightSame(value.rounded, grid.dropped_bits), grid.code_offset);
  const Integers sign = hn::And(hn::ShiftRight<31>(x), grid.code_sign);
  return hn::IfThenZeroElse(is_zero, hn::Or(sign, code));
}

template <Mode mode, typename T>
HWY_NOINLINE ApplyCounts encode_loop(const LoopTreatment& treatment, const T* in,
                                     std::uint8_t* codes, std::size_t num_values,
                                     std::uint64_t first_index) {
  using Draws = Drawing<1>;
  const CodeRule rule(treatment);
  Draws drawing(rule.random());
  const PruningVectors none(treatment);
  const GridVectors grid(treatment.grid);
  Tally tally;
  ApplyCounts rest;
  const std::size_t num_padded = for_groups<Draws::kElements>(
      in, codes, num_values, [&](const T* from, std::uint8_t* to, std::size_t offset) HWY_ATTR {
        const std::uint64_t index = first_index + offset;
        HWY_ALIGN float draws[Draws::kElements];
        if constexpr (mode != Mode::kNearest) drawing.fill(index, draws);
        const auto code_of = [&](std::size_t i) HWY_ATTR {
          return encode_vector<mode>(load(from + i), none, grid, draws + i, rule, index + i, tally,
                                     rest);
        };
        constexpr std::size_t kLanes = hn::MaxLanes(I32());
        for (std::size_t i = 0; i < Draws::kElements; i += 4 * kLanes)
          store_codes(code_of(i), code_of(i + kLanes), code_of(i + 2 * kLanes),
                      code_of(i + 3 * kLanes), to + i);
      });
  rest += tally.counts();
  rest.zeros -= num_padded;
  return rest;
}

template <bool prunes, typename T>
HWY_INLINE ApplyCounts apply_by_mode(const LoopTreatment& treatment, const T* in, T* out,
                                     std::size_t num_values, std::uint64_t first_index) {
  switch (mode_of(treatment)) {
    case Mode::kNothing:
      return apply_loop<prunes, Mode::kNothing>(treatment, in, out, num_values, first_index);
    case Mode::kNearest:
      return apply_loop<prunes, Mode::kNearest>(treatment, in, out, num_values, first_index);
    case Mode::kNearestWithDraws:
      return apply_loop<prunes, Mode::kNearestWithDraws>(treatment, in, out, num_values,
                                                         first_index);
    default:
      return apply_loop<prunes, Mode::kStochastic>(treatment, in, out, num_values, first_index);
  }
}

template <typename T>
HWY_INLINE ApplyCounts apply_values(const LoopTreatment& treatment, const T* in, T* out,
                                    std::size_t num_values, std::uint64_t first_index) {
  if (divides(treatment)) return apply_scalar(treatment, in, out, num_values, first_index);
  return by_tally(num_values, [&](std::size_t first, std::size_t count) HWY_ATTR {
    return treatment.prunes()
               ? apply_by_mode<true>(treatment, in + first, out + first, count, first_index + first)
               : apply_by_mode<false>(treatment, in + first, out + first, count,
                                      first_index + first);
  });
}

template <typename T>
HWY_INLINE ApplyCounts encode_by_mode(const LoopTreatment& treatment, const T* in,
                                      std::uint8_t* codes, std::size_t num_values,
                                      std::uint64_t first_index) {
  switch (mode_of(treatment)) {
    case Mode::kNearest:
      return encode_loop<Mode::kNearest>(treatment, in, codes, num_values, first_index);
    case Mode::kNearestWithDraws:
      return encode_loop<Mode::kNearestWithDraws>(treatment, in, codes, num_values, first_index);
    default:
      return encode_loop<Mode::kStochastic>(treatment, in, codes, num_values, first_index);
  }
}

template <typename T>
HWY_INLINE ApplyCounts encode_values(const LoopTreatment& treatment, const T* in,
                                     std::uint8_t* codes, std::size_t num_values,
                                     std::uint64_t first_index) {
  if (divides(treatment)) return encode_scalar(treatment, in, codes, num_values, first_index);
  return by_tally(num_values, [&](std::size_t first, std::size_t count) HWY_ATTR {
    return encode_by_mode(treatment, in + first, codes + first, count, first_index + first);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace slimgrad::kernels
HWY_AFTER_NAMESPACE();

#endif  // include guard, once per target
