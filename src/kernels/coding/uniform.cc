#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/coding/uniform.cc"
#include <hwy/foreach_target.h>
// After foreach_target, as Highway asks.
#include <hwy/highway.h>

#if HWY_TARGET != HWY_SCALAR
#include "kernels/philox-inl.h"
#endif
#include "formats/value_types.h"
#include "kernels/coding/uniform.h"
#include "kernels/dispatch.h"
#include "kernels/half_float-inl.h"
#include "kernels/half_float.h"

#ifndef SLIMGRAD_KERNELS_UNIFORM_ONCE_
#define SLIMGRAD_KERNELS_UNIFORM_ONCE_
namespace slimgrad::kernels::uniform {

// What vectors leave over.
template <typename T>
void quantize_scalar(std::span<const T> values, float step, int half,
                     std::uint8_t* symbols) noexcept {
  for (std::size_t i = 0; i < values.size(); ++i)
    symbols[i] = uniform_symbol(to_float(values[i]), step, half);
}

// The same with draws. Not inlined: vectors ask for it once in a thousand groups.
template <typename T>
HWY_NOINLINE void round_scalar(std::span<const T> values, float step, int half,
                               const RandomStream& random, std::uint64_t first_index,
                               std::uint8_t* symbols) noexcept {
  for (std::size_t i = 0; i < values.size(); ++i)
    symbols[i] = uniform_symbol(to_float(values[i]), step, half, random, first_index + i);
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

// Whole vectors; returns how many values that was.
template <typename T>
std::size_t quantize(std::span<const T> values, float step, int half, std::uint8_t* symbols) {
  const hn::ScalableTag<float> d;
  const hn::RebindToUnsigned<decltype(d)> d32;
  const hn::Rebind<std::uint8_t, decltype(d)> d8;
  const std::size_t lanes = hn::Lanes(d);
  const auto steps = hn::Set(d, step), limit = hn::Set(d, static_cast<float>(half));
  const auto offset = hn::Set(d32, uniform_offset(half));
  std::size_t i = 0;
  for (; i + lanes <= values.size(); i += lanes) {
    const auto quotient = hn::Div(load_floats(d, values.data() + i), steps);
    const auto limited = hn::Min(hn::Max(quotient, hn::Neg(limit)), limit);
    const auto counted = hn::BitCast(d32, hn::Add(limited, hn::Set(d, kRoundToInteger)));
    hn::StoreU(hn::U8FromU32(hn::Add(counted, offset)), d8, symbols + i);
  }
  return i;
}

std::size_t quantize_floats(std::span<const float> values, float step, int half,
                            std::uint8_t* symbols) {
  return quantize(values, step, half, symbols);
}
std::size_t quantize_bfloat16(std::span<const BFloat16Bits> values, float step, int half,
                              std::uint8_t* symbols) {
  return quantize(values, step, half, symbols);
}
std::size_t quantize_float16(std::span<const Float16Bits> values, float step, int half,
                             std::uint8_t* symbols) {
  return quantize(values, step, half, symbols);
}

#if HWY_TARGET == HWY_SCALAR
template <typename T>
std::size_t round(std::span<const T>, float, int, const RandomStream&, std::uint64_t,
                  std::uint8_t*) {
  return 0;
}
#else
using slimgrad::kernels::HWY_NAMESPACE::Drawing;

// round_scalar() for whole groups of draws; returns how many values that was. An event is decided
// by 16 bits; a group in which they do not suffice, one of a thousand, goes back to the
// specification. REQUIRES: first_index is a multiple of the group.
template <typename T>
std::size_t round(std::span<const T> values, float step, int half, const RandomStream& random,
                  std::uint64_t first_index, std::uint8_t* symbols) {
  using Draws = Drawing<1>;
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> i32;
  const hn::RebindToUnsigned<decltype(d)> u32;
  const hn::Rebind<std::uint8_t, decltype(d)> d8;
  const std::size_t lanes = hn::Lanes(d);
  const auto steps = hn::Set(d, step), limit = hn::Set(d, static_cast<float>(half));
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
      const auto symbol = hn::ConvertTo(i32, hn::Add(level, limit));
      hn::StoreU(hn::U8FromU32(hn::BitCast(u32, symbol)), d8, symbols + i + k);
    }
    if (HWY_UNLIKELY(!hn::AllFalse(d, hn::MaskFromVec(undecided))))
      round_scalar(values.subspan(i, Draws::kElements), step, half, random, first_index + i,
                   symbols + i);
  }
  return i;
}

#endif

std::size_t round_floats(std::span<const float> values, float step, int half,
                         const RandomStream& random, std::uint64_t first, std::uint8_t* symbols) {
  return round(values, step, half, random, first, symbols);
}
std::size_t round_bfloat16(std::span<const BFloat16Bits> values, float step, int half,
                           const RandomStream& random, std::uint64_t first, std::uint8_t* symbols) {
  return round(values, step, half, random, first, symbols);
}
std::size_t round_float16(std::span<const Float16Bits> values, float step, int half,
                          const RandomStream& random, std::uint64_t first, std::uint8_t* symbols) {
  return round(values, step, half, random, first, symbols);
}

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
HWY_EXPORT(round_floats);
HWY_EXPORT(round_bfloat16);
HWY_EXPORT(round_float16);
HWY_EXPORT(restore_values);
HWY_EXPORT(add_values);

template <typename T>
std::size_t quantize_vectors(std::span<const T> values, float step, int half,
                             std::uint8_t* symbols) noexcept {
  if constexpr (std::is_same_v<T, float>)
    return HWY_DYNAMIC_DISPATCH(quantize_floats)(values, step, half, symbols);
  else if constexpr (std::is_same_v<T, BFloat16Bits>)
    return HWY_DYNAMIC_DISPATCH(quantize_bfloat16)(values, step, half, symbols);
  else
    return HWY_DYNAMIC_DISPATCH(quantize_float16)(values, step, half, symbols);
}

template <typename T>
std::size_t round_vectors(std::span<const T> values, float step, int half,
                          const RandomStream& random, std::uint64_t first,
                          std::uint8_t* symbols) noexcept {
  if constexpr (std::is_same_v<T, float>)
    return HWY_DYNAMIC_DISPATCH(round_floats)(values, step, half, random, first, symbols);
  else if constexpr (std::is_same_v<T, BFloat16Bits>)
    return HWY_DYNAMIC_DISPATCH(round_bfloat16)(values, step, half, random, first, symbols);
  else
    return HWY_DYNAMIC_DISPATCH(round_float16)(values, step, half, random, first, symbols);
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
  const std::size_t done =
      use_scalar() ? 0 : uniform::quantize_vectors(values, step, half, symbols);
  uniform::quantize_scalar(values.subspan(done), step, half, symbols + done);
}

template <typename T>
void uniform_symbols_stochastic(std::span<const T> values, float step, int half,
                                const RandomStream& random, std::uint64_t first_index,
                                std::uint8_t* symbols) noexcept {
  // Draws are made for 64 values at a time, from a multiple of 64 on.
  const bool aligned = first_index % (2 * kTileElements) == 0;
  const std::size_t done =
      use_scalar() || !aligned
          ? 0
          : uniform::round_vectors(values, step, half, random, first_index, symbols);
  uniform::round_scalar(values.subspan(done), step, half, random, first_index + done,
                        symbols + done);
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
                                           std::uint64_t, std::uint8_t*) noexcept;
SLIMGRAD_INSTANTIATE(float)
SLIMGRAD_INSTANTIATE(BFloat16Bits)
SLIMGRAD_INSTANTIATE(Float16Bits)
#undef SLIMGRAD_INSTANTIATE

}  // namespace slimgrad::kernels
#endif  // HWY_ONCE
