#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/coding/uniform.cc"
#include <hwy/foreach_target.h>
// After foreach_target, as Highway asks.
#include <hwy/highway.h>

#if HWY_TARGET != HWY_SCALAR
#include "kernels/philox-inl.h"
#endif
#include "formats/open_levels.h"
#include "formats/value_types.h"
#include "kernels/coding/uniform.h"
#include "kernels/dispatch.h"
#include "kernels/half_float-inl.h"
#include "kernels/half_float.h"

#ifndef SLIMGRAD_KERNELS_UNIFORM_ONCE_
#define SLIMGRAD_KERNELS_UNIFORM_ONCE_
namespace slimgrad::kernels::uniform {

// What a loop writes: symbols, 8 bits, which begin at 0, or levels, 32 bits, around 0. `Range` is
// the largest level, and what is added to one to make it a symbol.
template <typename Out>
struct Range;
template <>
struct Range<std::uint8_t> {
  int limit;
  int offset() const { return limit; }
};
template <>
struct Range<std::int32_t> {
  int limit;
  static constexpr int offset() { return 0; }
};

// What vectors leave over.
template <typename T, typename Out>
void quantize_scalar(std::span<const T> values, float step, Range<Out> range, Out* out) noexcept {
  for (std::size_t i = 0; i < values.size(); ++i)
    out[i] =
        static_cast<Out>(uniform_level(to_float(values[i]), step, range.limit) + range.offset());
}

// The same with draws. Not inlined: vectors ask for it once in a thousand groups.
template <typename T, typename Out>
HWY_NOINLINE void round_scalar(std::span<const T> values, float step, Range<Out> range,
                               const RandomStream& random, std::uint64_t first_index,
                               Out* out) noexcept {
  for (std::size_t i = 0; i < values.size(); ++i)
    out[i] = static_cast<Out>(
        uniform_level(to_float(values[i]), step, range.limit, random, first_index + i) +
        range.offset());
}

template <bool add>
void restore_scalar(std::span<const std::uint8_t> symbols, float step, int half,
                    float* values) noexcept {
  for (std::size_t i = 0; i < symbols.size(); ++i) {
    const float value = uniform_value(symbols[i], step, half);
    values[i] = add ? values[i] + value : value;
  }
}

}  // namespace slimgrad::kernels::uniform
#endif  // SLIMGRAD_KERNELS_UNIFORM_ONCE_

HWY_BEFORE_NAMESPACE();
namespace slimgrad::kernels::uniform::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using slimgrad::kernels::HWY_NAMESPACE::load_floats;

// Whole numbers of 32 bits, as they are or as bytes.
template <typename V>
void store(V numbers, std::uint8_t* out) {
  const hn::RebindToUnsigned<hn::DFromV<V>> u32;
  const hn::Rebind<std::uint8_t, decltype(u32)> d8;
  hn::StoreU(hn::U8FromU32(hn::BitCast(u32, numbers)), d8, out);
}
template <typename V>
void store(V numbers, std::int32_t* out) {
  const hn::RebindToSigned<hn::DFromV<V>> i32;
  hn::StoreU(hn::BitCast(i32, numbers), i32, out);
}

// Whole vectors; returns how many values that was.
template <typename T, typename Out>
std::size_t quantize(std::span<const T> values, float step, Range<Out> range, Out* out) {
  const hn::ScalableTag<float> d;
  const hn::RebindToUnsigned<decltype(d)> d32;
  const std::size_t lanes = hn::Lanes(d);
  const auto steps = hn::Set(d, step), limit = hn::Set(d, static_cast<float>(range.limit));
  const auto offset = hn::Set(d32, uniform_offset(range.offset()));
  std::size_t i = 0;
  for (; i + lanes <= values.size(); i += lanes) {
    const auto quotient = hn::Div(load_floats(d, values.data() + i), steps);
    const auto limited = hn::Min(hn::Max(quotient, hn::Neg(limit)), limit);
    const auto counted = hn::BitCast(d32, hn::Add(limited, hn::Set(d, kRoundToInteger)));
    store(hn::Add(counted, offset), out + i);
  }
  return i;
}

#define SLIMGRAD_QUANTIZE(NAME, T, Out)                                                 \
  std::size_t NAME(std::span<const T> values, float step, Range<Out> range, Out* out) { \
    return quantize(values, step, range, out);                                          \
  }
SLIMGRAD_QUANTIZE(quantize_floats, float, std::uint8_t)
SLIMGRAD_QUANTIZE(quantize_bfloat16, BFloat16Bits, std::uint8_t)
SLIMGRAD_QUANTIZE(quantize_float16, Float16Bits, std::uint8_t)
SLIMGRAD_QUANTIZE(level_floats, float, std::int32_t)
SLIMGRAD_QUANTIZE(level_bfloat16, BFloat16Bits, std::int32_t)
SLIMGRAD_QUANTIZE(level_float16, Float16Bits, std::int32_t)
#undef SLIMGRAD_QUANTIZE

#if HWY_TARGET == HWY_SCALAR
template <typename T, typename Out>
std::size_t round(std::span<const T>, float, Range<Out>, const RandomStream&, std::uint64_t, Out*) {
  return 0;
}
#else
using slimgrad::kernels::HWY_NAMESPACE::Drawing;

// round_scalar() for whole groups of draws; returns how many values that was. An event is decided
// by 16 bits; a group in which they do not suffice, one of a thousand, goes back to the
// specification. REQUIRES: first_index is a multiple of the group.
template <typename T, typename Out>
std::size_t round(std::span<const T> values, float step, Range<Out> range,
                  const RandomStream& random, std::uint64_t first_index, Out* out) {
  using Draws = Drawing<1>;
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> i32;
  const std::size_t lanes = hn::Lanes(d);
  const auto steps = hn::Set(d, step), limit = hn::Set(d, static_cast<float>(range.limit));
  const auto offset = hn::Set(d, static_cast<float>(range.offset()));
  const auto one = hn::Set(d, 1.0f), scale = hn::Set(d, 0x1p16f);
  Draws drawing(random);
  std::size_t i = 0;
  for (; i + Draws::kElements <= values.size(); i += Draws::kElements) {
    HWY_ALIGN float draws[Draws::kElements];
    drawing.fill(first_index + i, draws);
    auto undecided = hn::Zero(d);
    for (std::size_t k = 0; k < Draws::kElements; k += lanes) {
      const auto quotient = hn::Div(load_floats(d, values.data() + i + k), steps);
      const auto limited = hn::Min(hn::Max(quotient, hn::Neg(limit)), limit);
      const auto below = hn::Floor(limited);
      const auto leading = hn::Floor(hn::Mul(hn::Sub(limited, below), scale));
      const auto draw = hn::LoadU(d, draws + k);
      undecided = hn::Or(undecided, hn::VecFromMask(d, hn::Eq(draw, leading)));
      const auto level = hn::Add(below, hn::IfThenElseZero(hn::Lt(draw, leading), one));
      store(hn::ConvertTo(i32, hn::Add(level, offset)), out + i + k);
    }
    if (HWY_UNLIKELY(!hn::AllFalse(d, hn::MaskFromVec(undecided))))
      round_scalar(values.subspan(i, Draws::kElements), step, range, random, first_index + i,
                   out + i);
  }
  return i;
}

#endif

#define SLIMGRAD_ROUND(NAME, T, Out)                                            \
  std::size_t NAME(std::span<const T> values, float step, Range<Out> range,     \
                   const RandomStream& random, std::uint64_t first, Out* out) { \
    return round(values, step, range, random, first, out);                      \
  }
SLIMGRAD_ROUND(round_floats, float, std::uint8_t)
SLIMGRAD_ROUND(round_bfloat16, BFloat16Bits, std::uint8_t)
SLIMGRAD_ROUND(round_float16, Float16Bits, std::uint8_t)
SLIMGRAD_ROUND(round_level_floats, float, std::int32_t)
SLIMGRAD_ROUND(round_level_bfloat16, BFloat16Bits, std::int32_t)
SLIMGRAD_ROUND(round_level_float16, Float16Bits, std::int32_t)
#undef SLIMGRAD_ROUND

// restore_scalar() for whole vectors; returns how many values that was.
template <bool add>
std::size_t restore(std::span<const std::uint8_t> symbols, float step, int half, float* values) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> i32;
  const hn::Rebind<std::uint8_t, decltype(d)> d8;
  const std::size_t lanes = hn::Lanes(d);
  const auto steps = hn::Set(d, step), largest = hn::Set(d, kLargest<float>);
  const auto middle = hn::Set(i32, half);
  std::size_t i = 0;
  for (; i + lanes <= symbols.size(); i += lanes) {
    const auto level = hn::Sub(hn::PromoteTo(i32, hn::LoadU(d8, symbols.data() + i)), middle);
    const auto product = hn::Mul(hn::ConvertTo(d, level), steps);
    const auto value = hn::Min(hn::Max(product, hn::Neg(largest)), largest);
    hn::StoreU(add ? hn::Add(hn::LoadU(d, values + i), value) : value, d, values + i);
  }
  return i;
}

std::size_t restore_values(std::span<const std::uint8_t> symbols, float step, int half,
                           float* values) {
  return restore<false>(symbols, step, half, values);
}
std::size_t add_values(std::span<const std::uint8_t> symbols, float step, int half, float* sums) {
  return restore<true>(symbols, step, half, sums);
}

}  // namespace slimgrad::kernels::uniform::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace slimgrad::kernels {
namespace uniform {
HWY_EXPORT(quantize_floats);
HWY_EXPORT(quantize_bfloat16);
HWY_EXPORT(quantize_float16);
HWY_EXPORT(level_floats);
HWY_EXPORT(level_bfloat16);
HWY_EXPORT(level_float16);
HWY_EXPORT(round_floats);
HWY_EXPORT(round_bfloat16);
HWY_EXPORT(round_float16);
HWY_EXPORT(round_level_floats);
HWY_EXPORT(round_level_bfloat16);
HWY_EXPORT(round_level_float16);
HWY_EXPORT(restore_values);
HWY_EXPORT(add_values);

#define SLIMGRAD_VECTORS(T, Out, QUANTIZE, ROUND)                                                 \
  std::size_t quantize_vectors(std::span<const T> values, float step, Range<Out> range,           \
                               Out* out) noexcept {                                               \
    return HWY_DYNAMIC_DISPATCH(QUANTIZE)(values, step, range, out);                              \
  }                                                                                               \
  std::size_t round_vectors(std::span<const T> values, float step, Range<Out> range,              \
                            const RandomStream& random, std::uint64_t first, Out* out) noexcept { \
    return HWY_DYNAMIC_DISPATCH(ROUND)(values, step, range, random, first, out);                  \
  }
SLIMGRAD_VECTORS(float, std::uint8_t, quantize_floats, round_floats)
SLIMGRAD_VECTORS(BFloat16Bits, std::uint8_t, quantize_bfloat16, round_bfloat16)
SLIMGRAD_VECTORS(Float16Bits, std::uint8_t, quantize_float16, round_float16)
SLIMGRAD_VECTORS(float, std::int32_t, level_floats, round_level_floats)
SLIMGRAD_VECTORS(BFloat16Bits, std::int32_t, level_bfloat16, round_level_bfloat16)
SLIMGRAD_VECTORS(Float16Bits, std::int32_t, level_float16, round_level_float16)
#undef SLIMGRAD_VECTORS

template <typename T, typename Out>
void to_nearest(std::span<const T> values, float step, Range<Out> range, Out* out) noexcept {
  const std::size_t done = use_scalar() ? 0 : quantize_vectors(values, step, range, out);
  quantize_scalar(values.subspan(done), step, range, out + done);
}

template <typename T, typename Out>
void to_either(std::span<const T> values, float step, Range<Out> range, const RandomStream& random,
               std::uint64_t first_index, Out* out) noexcept {
  // Draws are made for 64 values at a time, from a multiple of 64 on.
  const bool aligned = first_index % (2 * kTileElements) == 0;
  const std::size_t done =
      use_scalar() || !aligned ? 0 : round_vectors(values, step, range, random, first_index, out);
  round_scalar(values.subspan(done), step, range, random, first_index + done, out + done);
}

std::size_t restore_vectors(std::span<const std::uint8_t> symbols, float step, int half,
                            float* values) noexcept {
  return HWY_DYNAMIC_DISPATCH(restore_values)(symbols, step, half, values);
}
std::size_t add_vectors(std::span<const std::uint8_t> symbols, float step, int half,
                        float* sums) noexcept {
  return HWY_DYNAMIC_DISPATCH(add_values)(symbols, step, half, sums);
}
}  // namespace uniform

template <typename T>
void uniform_symbols(std::span<const T> values, float step, int half,
                     std::uint8_t* symbols) noexcept {
  uniform::to_nearest(values, step, uniform::Range<std::uint8_t>{half}, symbols);
}

template <typename T>
void uniform_symbols_stochastic(std::span<const T> values, float step, int half,
                                const RandomStream& random, std::uint64_t first_index,
                                std::uint8_t* symbols) noexcept {
  uniform::to_either(values, step, uniform::Range<std::uint8_t>{half}, random, first_index,
                     symbols);
}

template <typename T>
void uniform_levels(std::span<const T> values, float step, std::int32_t* levels) noexcept {
  uniform::to_nearest(values, step, uniform::Range<std::int32_t>{kLargestLevel}, levels);
}

template <typename T>
void uniform_levels_stochastic(std::span<const T> values, float step, const RandomStream& random,
                               std::uint64_t first_index, std::int32_t* levels) noexcept {
  uniform::to_either(values, step, uniform::Range<std::int32_t>{kLargestLevel}, random, first_index,
                     levels);
}

void uniform_values(std::span<const std::uint8_t> symbols, float step, int half,
                    float* values) noexcept {
  const std::size_t done = use_scalar() ? 0 : uniform::restore_vectors(symbols, step, half, values);
  uniform::restore_scalar<false>(symbols.subspan(done), step, half, values + done);
}

void add_uniform_values(std::span<const std::uint8_t> symbols, float step, int half,
                        float* sums) noexcept {
  const std::size_t done = use_scalar() ? 0 : uniform::add_vectors(symbols, step, half, sums);
  uniform::restore_scalar<true>(symbols.subspan(done), step, half, sums + done);
}

#define SLIMGRAD_INSTANTIATE(T)                                                                 \
  template void uniform_symbols(std::span<const T>, float, int, std::uint8_t*) noexcept;        \
  template void uniform_symbols_stochastic(std::span<const T>, float, int, const RandomStream&, \
                                           std::uint64_t, std::uint8_t*) noexcept;              \
  template void uniform_levels(std::span<const T>, float, std::int32_t*) noexcept;              \
  template void uniform_levels_stochastic(std::span<const T>, float, const RandomStream&,       \
                                          std::uint64_t, std::int32_t*) noexcept;
SLIMGRAD_INSTANTIATE(float)
SLIMGRAD_INSTANTIATE(BFloat16Bits)
SLIMGRAD_INSTANTIATE(Float16Bits)
#undef SLIMGRAD_INSTANTIATE

}  // namespace slimgrad::kernels
#endif  // HWY_ONCE
