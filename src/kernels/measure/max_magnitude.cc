// The order of the bits of non-negative floats, of any of the three types, is the order of the
// floats: the maximum is one of integers, and Inf and NaN are the largest of them.
#include "kernels/measure/magnitude_range.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/dispatch.h"
#include "kernels/half_float.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/measure/max_magnitude.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace slimgrad::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// `infinity` is the type's, as bits; so is the result.
template <typename Integer>
HWY_INLINE Integer max_finite(const Integer* values, std::size_t num_values, Integer infinity) {
  const hn::ScalableTag<Integer> d;
  constexpr auto kMagnitude = static_cast<Integer>(~(Integer{1} << (8 * sizeof(Integer) - 1)));
  const auto magnitude_mask = hn::Set(d, kMagnitude);
  const auto limit = hn::Set(d, infinity);
  const auto magnitude_of = [&](auto x) HWY_ATTR {
    const auto magnitude = hn::And(x, magnitude_mask);
    return hn::IfThenElseZero(hn::Lt(magnitude, limit), magnitude);
  };
  // Two chains, since each step waits for the one before.
  auto even = hn::Zero(d), odd = hn::Zero(d);
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + 2 * lanes <= num_values; i += 2 * lanes) {
    even = hn::Max(even, magnitude_of(hn::LoadU(d, values + i)));
    odd = hn::Max(odd, magnitude_of(hn::LoadU(d, values + i + lanes)));
  }
  HWY_ALIGN Integer largest[hn::MaxLanes(d)];
  hn::Store(hn::Max(even, odd), d, largest);
  Integer max = *std::max_element(largest, largest + lanes);
  for (; i < num_values; ++i) {
    const auto magnitude = static_cast<Integer>(values[i] & kMagnitude);
    if (magnitude < infinity) max = std::max(max, magnitude);
  }
  return max;
}

std::int32_t max_of_words(const std::int32_t* values, std::size_t num_values,
                          std::int32_t infinity) {
  return max_finite(values, num_values, infinity);
}
std::int16_t max_of_halves(const std::int16_t* values, std::size_t num_values,
                           std::int16_t infinity) {
  return max_finite(values, num_values, infinity);
}

}  // namespace HWY_NAMESPACE
}  // namespace slimgrad::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace slimgrad::kernels {
namespace {

HWY_EXPORT(max_of_words);
HWY_EXPORT(max_of_halves);

// The specification.
template <typename T>
float max_scalar(std::span<const T> values) {
  std::uint32_t max = 0;
  for (const T x : values)
    if (const std::uint32_t magnitude = magnitude_bits(x); magnitude < kInfinityBits)
      max = std::max(max, magnitude);
  return std::bit_cast<float>(max);
}

template <typename T>
float max_of(std::span<const T> values, std::int16_t infinity) {
  if (use_scalar()) return max_scalar(values);
  const auto* halves = reinterpret_cast<const std::int16_t*>(values.data());
  const std::int16_t max = HWY_DYNAMIC_DISPATCH(max_of_halves)(halves, values.size(), infinity);
  return to_float(T{static_cast<std::uint16_t>(max)});
}

}  // namespace

float max_magnitude(std::span<const float> values) noexcept {
  if (use_scalar()) return max_scalar(values);
  const auto* words = reinterpret_cast<const std::int32_t*>(values.data());
  return std::bit_cast<float>(HWY_DYNAMIC_DISPATCH(max_of_words)(words, values.size(), 0x7f800000));
}
float max_magnitude(std::span<const BFloat16Bits> values) noexcept {
  return max_of(values, 0x7f80);
}
float max_magnitude(std::span<const Float16Bits> values) noexcept { return max_of(values, 0x7c00); }

}  // namespace slimgrad::kernels
#endif  // HWY_ONCE
