// Vectors of float32 loaded from and stored to arrays of the three input types: half_float.h for
// all lanes at once. Included once for every CPU target.
#if defined(SLIMGRAD_KERNELS_HALF_FLOAT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLIMGRAD_KERNELS_HALF_FLOAT_INL_H_
#undef SLIMGRAD_KERNELS_HALF_FLOAT_INL_H_
#else
#define SLIMGRAD_KERNELS_HALF_FLOAT_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

#include <slimgrad/half.h>

HWY_BEFORE_NAMESPACE();
namespace slimgrad::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <class D>
using Halves = hn::Rebind<std::uint16_t, D>;
template <class D>
using FloatBits = hn::Vec<hn::RebindToSigned<D>>;

// ---- loading -----------------------------------------------------------------------------------

// The bits of a float32, for halves of a float16 without their sign.
template <class D>
HWY_INLINE FloatBits<D> from_float16_magnitude(D d, FloatBits<D> magnitude) {
  const hn::RebindToSigned<D> i32;
  const auto rebias = hn::Set(i32, 112 << 23);
  const auto normal = hn::Add(hn::ShiftLeft<13>(magnitude), rebias);
  const auto is_nonfinite = hn::Gt(magnitude, hn::Set(i32, 0x7bff));
  const auto large = hn::Add(normal, hn::IfThenElseZero(is_nonfinite, rebias));
  const auto subnormal = hn::Mul(hn::ConvertTo(d, magnitude), hn::Set(d, 0x1p-24f));
  const auto is_subnormal = hn::Lt(magnitude, hn::Set(i32, 0x0400));
  return hn::IfThenElse(is_subnormal, hn::BitCast(i32, subnormal), large);
}

template <class D>
HWY_INLINE hn::Vec<D> load_floats(D d, const float* from) {
  return hn::LoadU(d, from);
}

template <class D>
HWY_INLINE hn::Vec<D> load_floats(D d, const BFloat16Bits* from) {
  const hn::RebindToUnsigned<D> u32;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(u32, hn::LoadU(Halves<D>(), &from->bits))));
}

template <class D>
HWY_INLINE hn::Vec<D> load_floats(D d, const Float16Bits* from) {
  const hn::RebindToUnsigned<D> u32;
  const hn::RebindToSigned<D> i32;
  const auto all = hn::BitCast(i32, hn::PromoteTo(u32, hn::LoadU(Halves<D>(), &from->bits)));
  const auto sign = hn::ShiftLeft<16>(hn::And(all, hn::Set(i32, 0x8000)));
  const auto bits = from_float16_magnitude(d, hn::And(all, hn::Set(i32, 0x7fff)));
  return hn::BitCast(d, hn::Or(bits, sign));
}

// magnitude_bits() of magnitude.h.
template <class D, typename T>
HWY_INLINE FloatBits<D> load_magnitudes(D d, const T* from) {
  const hn::RebindToSigned<D> i32;
  return hn::And(hn::BitCast(i32, load_floats(d, from)), hn::Set(i32, 0x7fffffff));
}

template <class D>
HWY_INLINE FloatBits<D> load_magnitudes(D d, const Float16Bits* from) {
  const hn::RebindToUnsigned<D> u32;
  const hn::RebindToSigned<D> i32;
  const auto half = hn::And(hn::LoadU(Halves<D>(), &from->bits), hn::Set(Halves<D>(), 0x7fff));
  return from_float16_magnitude(d, hn::BitCast(i32, hn::PromoteTo(u32, half)));
}

// ---- storing -----------------------------------------------------------------------------------

// Rounds to bfloat16, in the upper half of the word; the lower one is unspecified. Not for NaN,
// which may become Inf.
template <class U>
HWY_INLINE hn::Vec<U> round_upper_half(U u32, hn::Vec<U> bits) {
  const auto is_odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(u32, 1));
  return hn::Add(hn::Add(bits, hn::Set(u32, 0x7fff)), is_odd);
}

template <class D>
HWY_INLINE FloatBits<D> to_bfloat16(D, FloatBits<D> bits) {
  const hn::RebindToUnsigned<D> u32;
  const hn::RebindToSigned<D> i32;
  const auto rounded = round_upper_half(u32, hn::BitCast(u32, bits));
  return hn::BitCast(i32, hn::ShiftRight<16>(rounded));
}

// REQUIRES: magnitudes below 2^16; the others need another value.
template <class D>
HWY_INLINE FloatBits<D> to_float16_magnitude(D d, FloatBits<D> magnitude) {
  const hn::RebindToSigned<D> i32;
  const auto is_odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(i32, 1));
  const auto normal =
      hn::ShiftRight<13>(hn::Add(hn::Add(magnitude, hn::Set(i32, 0xfff - (112 << 23))), is_odd));
  const auto sum = hn::Add(hn::BitCast(d, magnitude), hn::Set(d, 0.5f));
  const auto subnormal = hn::Sub(hn::BitCast(i32, sum), hn::Set(i32, 126 << 23));
  return hn::IfThenElse(hn::Lt(magnitude, hn::Set(i32, 113 << 23)), subnormal, normal);
}

template <class D>
HWY_INLINE void store_halves(D, FloatBits<D> halves, std::uint16_t* to) {
  hn::StoreU(hn::DemoteTo(Halves<D>(), halves), Halves<D>(), to);
}

// from_float_bits() of half_float.h, for bits that are known to fit.
template <class D>
HWY_INLINE void store_float_bits(D d, FloatBits<D> bits, float* to) {
  hn::StoreU(hn::BitCast(d, bits), d, to);
}

template <class D>
HWY_INLINE void store_float_bits(D d, FloatBits<D> bits, BFloat16Bits* to) {
  store_halves(d, to_bfloat16(d, bits), &to->bits);
}

template <class D>
HWY_INLINE void store_float_bits(D d, FloatBits<D> bits, Float16Bits* to) {
  const hn::RebindToSigned<D> i32;
  const auto magnitude = hn::And(bits, hn::Set(i32, 0x7fffffff));
  const auto nonfinite = hn::ShiftRight<13>(hn::Sub(magnitude, hn::Set(i32, 224 << 23)));
  const auto is_nonfinite = hn::Gt(magnitude, hn::Set(i32, 0x7f7fffff));
  const auto half = hn::IfThenElse(is_nonfinite, nonfinite, to_float16_magnitude(d, magnitude));
  const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(i32, 0x8000));
  store_halves(d, hn::Or(sign, half), &to->bits);
}

// from_float(), for any number.
template <class D>
HWY_INLINE void store_floats(D d, hn::Vec<D> x, float* to) {
  hn::StoreU(x, d, to);
}

template <class D>
HWY_INLINE void store_floats(D d, hn::Vec<D> x, BFloat16Bits* to) {
  const hn::RebindToSigned<D> i32;
  const auto is_nan = hn::RebindMask(i32, hn::IsNaN(x));
  const auto rounded = to_bfloat16(d, hn::BitCast(i32, x));
  store_halves(d, hn::IfThenElse(is_nan, hn::Set(i32, 0x7fc0), rounded), &to->bits);
}

template <class D>
HWY_INLINE void store_floats(D d, hn::Vec<D> x, Float16Bits* to) {
  const hn::RebindToSigned<D> i32;
  const auto all = hn::BitCast(i32, x);
  const auto magnitude = hn::And(all, hn::Set(i32, 0x7fffffff));
  const auto sign = hn::And(hn::ShiftRight<16>(all), hn::Set(i32, 0x8000));
  const auto is_large = hn::Gt(magnitude, hn::Set(i32, (143 << 23) - 1));
  auto half = hn::IfThenElse(is_large, hn::Set(i32, 0x7c00), to_float16_magnitude(d, magnitude));
  half = hn::Or(half, sign);
  half = hn::IfThenElse(hn::Gt(magnitude, hn::Set(i32, 0x7f800000)), hn::Set(i32, 0x7e00), half);
  store_halves(d, half, &to->bits);
}

}  // namespace HWY_NAMESPACE
}  // namespace slimgrad::kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
