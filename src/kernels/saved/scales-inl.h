// The scales of the groups of a block. Included once per target.
#if defined(SLIMGRAD_KERNELS_SAVED_SCALES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLIMGRAD_KERNELS_SAVED_SCALES_INL_H_
#undef SLIMGRAD_KERNELS_SAVED_SCALES_INL_H_
#else
#define SLIMGRAD_KERNELS_SAVED_SCALES_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <slimgrad/half.h>

#include "formats/saved.h"
#include "kernels/half_float.h"

HWY_BEFORE_NAMESPACE();
namespace slimgrad::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

struct Extremes {
  float minimum, maximum;
  bool is_finite;  // Otherwise the two mean nothing.
};

HWY_INLINE Extremes extremes_of(const float* values, std::size_t count) {
  const hn::CappedTag<float, saved::kLeastGroup> f32;
  const hn::RebindToUnsigned<decltype(f32)> u32;
  const float* const end = values + count;
  auto least = hn::LoadU(f32, end - hn::Lanes(f32)), most = least, odd = hn::Sub(least, least);
  for (const float* from = values; from + hn::Lanes(f32) < end; from += hn::Lanes(f32)) {
    const auto x = hn::LoadU(f32, from);
    least = hn::Min(least, x);
    most = hn::Max(most, x);
    odd = hn::Or(odd, hn::Sub(x, x));  // 0, or NaN for what is not finite
  }
  return {.minimum = hn::GetLane(hn::MinOfLanes(f32, least)),
          .maximum = hn::GetLane(hn::MaxOfLanes(f32, most)),
          .is_finite = hn::AllTrue(u32, hn::Eq(hn::BitCast(u32, odd), hn::Zero(u32)))};
}

// REQUIRES: the values are not negative, and one is positive.
HWY_INLINE float least_positive_of(const float* values, std::size_t count, float maximum) {
  const hn::CappedTag<float, saved::kLeastGroup> f32;
  auto least = hn::Set(f32, maximum);
  for (std::size_t i = 0; i < count; i += hn::Lanes(f32)) {
    const auto x = hn::LoadU(f32, values + i);
    least = hn::Min(least, hn::IfThenElse(hn::Gt(x, hn::Zero(f32)), x, least));
  }
  return hn::GetLane(hn::MinOfLanes(f32, least));
}

// bfloat16 numbers are compared by their bits, as integers, twice as many at a time. Those without
// a sign are in order; those with one come after all others if the integers have no sign, before
// all others if they have, and the larger is the more negative. So: the maximum is the largest
// signed integer, but if all are negative it is the smallest unsigned one; the minimum is the
// largest unsigned integer, but if none is negative the smallest.
using SixteenBits = hn::CappedTag<std::uint16_t, saved::kLeastGroup>;
using EightLanes = hn::CappedTag<std::uint16_t, 8>;

template <class V>
HWY_INLINE hn::Vec<EightLanes> folded(V x) {
  const EightLanes half;
  if constexpr (hn::MaxLanes(SixteenBits()) == 16)
    return hn::Min(hn::LowerHalf(half, x), hn::UpperHalf(half, x));
  else
    return x;
}

HWY_INLINE Extremes extremes_of(const BFloat16Bits* values, std::size_t count) {
  const SixteenBits u16;
  const hn::RebindToSigned<SixteenBits> i16;
  auto least = hn::LoadU(u16, &values->bits), most = least;
  auto most_signed = hn::BitCast(i16, least);
  for (std::size_t i = hn::Lanes(u16); i < count; i += hn::Lanes(u16)) {
    const auto x = hn::LoadU(u16, &values[i].bits);
    least = hn::Min(least, x);
    most = hn::Max(most, x);
    most_signed = hn::Max(most_signed, hn::BitCast(i16, x));
  }
  // All three as minima, a lane of each: a b a b .., then a b c c a b c c, then a b c c.
  const EightLanes d8;
  const hn::Repartition<std::uint32_t, EightLanes> d4;
  const hn::Repartition<std::uint64_t, EightLanes> d2;
  const auto a = folded(least), b = folded(hn::Not(most));
  const auto c = folded(hn::Xor(hn::BitCast(u16, most_signed), hn::Set(u16, 0x7fff)));
  const auto ab = hn::BitCast(d4, hn::Min(hn::InterleaveLower(d8, a, b),  //
                                          hn::InterleaveUpper(d8, a, b)));
  const auto cc = hn::BitCast(d4, hn::Min(hn::InterleaveLower(d8, c, c),  //
                                          hn::InterleaveUpper(d8, c, c)));
  const auto abcc = hn::BitCast(d2, hn::Min(hn::BitCast(d8, hn::InterleaveLower(d4, ab, cc)),
                                            hn::BitCast(d8, hn::InterleaveUpper(d4, ab, cc))));
  const std::uint64_t found =
      hn::GetLane(hn::BitCast(d2, hn::Min(hn::BitCast(d8, abcc),  //
                                          hn::BitCast(d8, hn::Shuffle01(abcc)))));
  const auto smallest = static_cast<std::uint16_t>(found);
  const auto largest = static_cast<std::uint16_t>(~(found >> 16));
  const auto largest_signed = static_cast<std::uint16_t>(found >> 32 ^ 0x7fffu);
  const std::uint16_t maximum = largest_signed < 0x8000 ? largest_signed : smallest;
  const std::uint16_t minimum = largest >= 0x8000 ? largest : smallest;
  return {.minimum = to_float(BFloat16Bits{minimum}),
          .maximum = to_float(BFloat16Bits{maximum}),
          .is_finite = (maximum & 0x7fffu) < 0x7f80u && (minimum & 0x7fffu) < 0x7f80u};
}

// One less than 0 is more than all others, and so is one less than -0.0 than all that are finite.
HWY_INLINE float least_positive_of(const BFloat16Bits* values, std::size_t count, float) {
  const SixteenBits u16;
  auto least = hn::Set(u16, 0xffff);
  for (std::size_t i = 0; i < count; i += hn::Lanes(u16))
    least = hn::Min(least, hn::Sub(hn::LoadU(u16, &values[i].bits), hn::Set(u16, 1)));
  HWY_ALIGN std::uint16_t lanes[8];
  hn::Store(folded(least), EightLanes(), lanes);
  return to_float(
      BFloat16Bits{static_cast<std::uint16_t>(*std::min_element(lanes, lanes + 8) + 1)});
}

// false if one of the groups is bad. T: float or BFloat16Bits.
template <int kBits, typename T>
HWY_INLINE bool find_scales(const T* values, std::size_t group, saved::Scale* scales) {
  bool all_good = true;
  for (std::size_t first = 0; first < saved::kBlockValues; first += group, ++scales) {
    const Extremes found = extremes_of(values + first, group);
    if (HWY_UNLIKELY(!found.is_finite)) {
      *scales = {};
      all_good = false;
      continue;
    }
    const float least_positive = found.minimum == 0.0f && found.maximum > 0.0f
                                     ? least_positive_of(values + first, group, found.maximum)
                                     : 0.0f;
    *scales = saved::make_scale(found.minimum, found.maximum, least_positive, kBits);
    all_good = all_good && !scales->is_bad();
  }
  return all_good;
}

}  // namespace HWY_NAMESPACE
}  // namespace slimgrad::kernels
HWY_AFTER_NAMESPACE();

#endif  // include guard, once per target
