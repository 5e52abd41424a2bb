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
  const auto magnitude = hn::And(all, hn::Set(i32, 0x7fff));
  const auto sign = hn::ShiftLeft<16>(hn::And(all, hn::Set(i32, 0x8000)));
  const auto rebias = hn::Set(i32, 112 << 23);
  const auto normal = hn::Add(hn::ShiftLeft<13>(magnitude), rebias);
  const auto is_nonfinite = hn::Gt(magnitude, hn::Set(i32, 0x7bff));
  const auto large = hn::Add(normal, hn::IfThenElseZero(is_nonfinite, rebias));
  const auto subnormal = hn::Mul(hn::ConvertTo(d, magnitude), hn::Set(d, 0x1p-24f));
  const auto is_subnormal = hn::Lt(magnitude, hn::Set(i32, 0x0400));
  const auto bits = hn::IfThenElse(is_subnormal, hn::BitCast(i32, subnormal), large);
  return hn::BitCast(d, hn::Or(bits, sign));
}

template <class D>
HWY_INLINE void store_floats(D d, hn::Vec<D> x, float* to) {
  hn::StoreU(x, d, to);
}

template <class D>
HWY_INLINE void store_floats(D, hn::Vec<D> x, BFloat16Bits* to) {
  const hn::RebindToUnsigned<D> u32;
  const hn::RebindToSigned<D> i32;
  const auto bits = hn::BitCast(u32, x);
  const auto is_odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(u32, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(u32, 0x7fff)), is_odd));
  const auto is_nan = hn::RebindMask(i32, hn::IsNaN(x));
  const auto half = hn::IfThenElse(is_nan, hn::Set(i32, 0x7fc0), hn::BitCast(i32, rounded));
  hn::StoreU(hn::DemoteTo(Halves<D>(), half), Halves<D>(), &to->bits);
}

template <class D>
HWY_INLINE void store_floats(D d, hn::Vec<D> x, Float16Bits* to) {
  const hn::RebindToSigned<D> i32;
  const auto all = hn::BitCast(i32, x);
  const auto bits = hn::And(all, hn::Set(i32, 0x7fffffff));
  const auto sign = hn::And(hn::ShiftRight<16>(all), hn::Set(i32, 0x8000));
  const auto is_odd = hn::And(hn::ShiftRight<13>(bits), hn::Set(i32, 1));
  const auto normal =
      hn::ShiftRight<13>(hn::Add(hn::Add(bits, hn::Set(i32, 0xfff - (112 << 23))), is_odd));
  const auto sum = hn::Add(hn::BitCast(d, bits), hn::Set(d, 0.5f));
  const auto subnormal = hn::Sub(hn::BitCast(i32, sum), hn::Set(i32, 126 << 23));
  auto half = hn::IfThenElse(hn::Lt(bits, hn::Set(i32, 113 << 23)), subnormal, normal);
  half = hn::IfThenElse(hn::Gt(bits, hn::Set(i32, (143 << 23) - 1)), hn::Set(i32, 0x7c00), half);
  half = hn::Or(half, sign);
  half = hn::IfThenElse(hn::Gt(bits, hn::Set(i32, 0x7f800000)), hn::Set(i32, 0x7e00), half);
  hn::StoreU(hn::DemoteTo(Halves<D>(), half), Halves<D>(), &to->bits);
}

}  // namespace HWY_NAMESPACE
}  // namespace slimgrad::kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
