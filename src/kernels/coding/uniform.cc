#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/coding/uniform.cc"
#include <hwy/foreach_target.h>
// After foreach_target, as Highway asks.
#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/coding/uniform.h"
#include "kernels/dispatch.h"
#include "kernels/half_float-inl.h"
#include "kernels/half_float.h"

#ifndef SLIMGRAD_KERNELS_UNIFORM_ONCE_
#define SLIMGRAD_KERNELS_UNIFORM_ONCE_
namespace slimgrad::kernels::uniform {

// A float32 of 1.5 * 2^23 counts in ones: adding it rounds to an integer, ties to even, and leaves
// that in the low bits.
constexpr float kRound = 0x1.8p23f;

template <typename T>
float value_of(T value) {
  return std::bit_cast<float>(float_bits(value));
}

constexpr std::uint32_t offset_of(int half) {
  return static_cast<std::uint32_t>(half) - std::bit_cast<std::uint32_t>(kRound);
}

// The specification; also what vectors leave over.
template <typename T>
void quantize_scalar(std::span<const T> values, float step, int half,
                     std::uint8_t* symbols) noexcept {
  const auto limit = static_cast<float>(half);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float limited = std::min(std::max(value_of(values[i]) / step, -limit), limit);
    symbols[i] =
        static_cast<std::uint8_t>(std::bit_cast<std::uint32_t>(limited + kRound) + offset_of(half));
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
  const auto offset = hn::Set(d32, offset_of(half));
  std::size_t i = 0;
  for (; i + lanes <= values.size(); i += lanes) {
    const auto quotient = hn::Div(load_floats(d, values.data() + i), steps);
    const auto limited = hn::Min(hn::Max(quotient, hn::Neg(limit)), limit);
    const auto counted = hn::BitCast(d32, hn::Add(limited, hn::Set(d, kRound)));
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

}  // namespace slimgrad::kernels::uniform::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace slimgrad::kernels {
namespace uniform {
HWY_EXPORT(quantize_floats);
HWY_EXPORT(quantize_bfloat16);
HWY_EXPORT(quantize_float16);

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
  const auto limit = static_cast<float>(half);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float quotient = std::clamp(uniform::value_of(values[i]) / step, -limit, limit);
    const float below = std::floor(quotient);
    const bool up = random.happens(first_index + i, quotient - below);
    symbols[i] = static_cast<std::uint8_t>(static_cast<int>(below) + (up ? 1 : 0) + half);
  }
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
