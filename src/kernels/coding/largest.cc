#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/coding/largest.cc"
#include <hwy/foreach_target.h>
// After foreach_target, as Highway asks.
#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <type_traits>

#include <slimgrad/half.h>

#include "kernels/coding/largest.h"
#include "kernels/dispatch.h"

#ifndef SLIMGRAD_KERNELS_LARGEST_ONCE_
#define SLIMGRAD_KERNELS_LARGEST_ONCE_
namespace slimgrad::kernels::largest {

// The bits of a value but its sign, whose order, in all three types, is that of the magnitudes.
template <typename T>
using Word = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int16_t>;
template <typename T>
inline constexpr Word<T> kMagnitude = std::numeric_limits<Word<T>>::max();
template <typename T>
std::uint32_t magnitude_of(T value) {
  return static_cast<std::uint32_t>(std::bit_cast<Word<T>>(value) & kMagnitude<T>);
}

// Larger keys first; of equal magnitudes the one that comes first has the larger key.
inline std::uint64_t key_of(std::uint32_t magnitude, std::size_t place) {
  return std::uint64_t{magnitude} << 32 | (0xffffffffu - static_cast<std::uint32_t>(place));
}

// The places of the `count` largest keys; the keys are in the order of their places.
inline std::size_t choose(std::size_t num_keys, std::size_t count, LargestScratch& scratch,
                          std::uint16_t* places) noexcept {
  std::uint64_t least = 0;
  if (num_keys > count) {
    const auto sorted = scratch.sorted.begin();
    std::copy_n(scratch.keys.begin(), num_keys, sorted);
    const auto nth = sorted + static_cast<std::ptrdiff_t>(count - 1);
    std::nth_element(sorted, nth, sorted + static_cast<std::ptrdiff_t>(num_keys), std::greater<>());
    least = *nth;
  }
  std::size_t found = 0;
  for (std::size_t i = 0; i < num_keys; ++i) {
    if (scratch.keys[i] < least) continue;
    places[found++] =
        static_cast<std::uint16_t>(0xffffffffu - static_cast<std::uint32_t>(scratch.keys[i]));
  }
  return found;
}

// The plain form, which is the specification.
template <typename T>
std::size_t find_plainly(std::span<const T> values, std::size_t count, LargestScratch& scratch,
                         std::uint16_t* places) noexcept {
  std::size_t num_keys = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint32_t magnitude = magnitude_of(values[i]);
    if (magnitude > 0) scratch.keys[num_keys++] = key_of(magnitude, i);
  }
  return choose(num_keys, count, scratch, places);
}

}  // namespace slimgrad::kernels::largest
#endif  // SLIMGRAD_KERNELS_LARGEST_ONCE_

HWY_BEFORE_NAMESPACE();
namespace slimgrad::kernels::largest::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <typename T>
std::size_t find(std::span<const T> values, std::size_t count, LargestScratch& scratch,
                 std::uint16_t* places) {
#if HWY_TARGET != HWY_SCALAR
  using W = Word<T>;
  constexpr std::size_t kColumns = 64;  // in multiples of these, which all vectors divide
  const std::size_t columns = (2 * count + kColumns - 1) / kColumns * kColumns;
  const std::size_t rows = values.size() / columns;
  if (rows >= 4) {
    const hn::ScalableTag<W> d;
    const std::size_t lanes = hn::Lanes(d);
    const auto mask = hn::Set(d, kMagnitude<T>);
    const W* const words = reinterpret_cast<const W*>(values.data());
    W* const maxima = reinterpret_cast<W*>(scratch.maxima.data());
    for (std::size_t c = 0; c < columns; c += lanes) {
      auto most = hn::Zero(d);
      for (std::size_t r = 0; r < rows; ++r)
        most = hn::Max(most, hn::And(hn::LoadU(d, words + r * columns + c), mask));
      hn::Store(most, d, maxima + c);
    }
    std::nth_element(maxima, maxima + (count - 1), maxima + columns, std::greater<>());
    const W least = std::max<W>(maxima[count - 1], 1);
    const auto below = hn::Set(d, static_cast<W>(least - 1));
    std::size_t num_keys = 0, i = 0;
    for (; i + lanes <= values.size(); i += lanes) {
      const auto reach = hn::Gt(hn::And(hn::LoadU(d, words + i), mask), below);
      if (hn::AllFalse(d, reach)) continue;
      std::uint64_t bits = 0;
      std::uint8_t bytes[8] = {};  // one bit a lane, at most 64 of them
      hn::StoreMaskBits(d, reach, bytes);
      std::memcpy(&bits, bytes, 8);
      if (lanes < 64) bits &= (std::uint64_t{1} << lanes) - 1;
      for (; bits != 0; bits &= bits - 1) {
        const std::size_t place = i + static_cast<std::size_t>(std::countr_zero(bits));
        scratch.keys[num_keys++] = key_of(magnitude_of(values[place]), place);
      }
    }
    for (; i < values.size(); ++i) {
      const std::uint32_t magnitude = magnitude_of(values[i]);
      if (magnitude >= static_cast<std::uint32_t>(least))
        scratch.keys[num_keys++] = key_of(magnitude, i);
    }
    return choose(num_keys, count, scratch, places);
  }
#endif
  return find_plainly(values, count, scratch, places);
}

std::size_t find_f32(std::span<const float> values, std::size_t count, LargestScratch& scratch,
                     std::uint16_t* places) {
  return find(values, count, scratch, places);
}
std::size_t find_bf16(std::span<const BFloat16Bits> values, std::size_t count,
                      LargestScratch& scratch, std::uint16_t* places) {
  return find(values, count, scratch, places);
}
std::size_t find_f16(std::span<const Float16Bits> values, std::size_t count,
                     LargestScratch& scratch, std::uint16_t* places) {
  return find(values, count, scratch, places);
}

}  // namespace slimgrad::kernels::largest::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace slimgrad::kernels {
namespace largest {
HWY_EXPORT(find_f32);
HWY_EXPORT(find_bf16);
HWY_EXPORT(find_f16);
}  // namespace largest

template <typename T>
std::size_t largest_places(std::span<const T> values, std::size_t count, LargestScratch& scratch,
                           std::uint16_t* places) noexcept {
  using namespace largest;
  if (use_scalar()) return find_plainly(values, count, scratch, places);
  if constexpr (std::is_same_v<T, float>)
    return HWY_DYNAMIC_DISPATCH(find_f32)(values, count, scratch, places);
  else if constexpr (std::is_same_v<T, BFloat16Bits>)
    return HWY_DYNAMIC_DISPATCH(find_bf16)(values, count, scratch, places);
  else
    return HWY_DYNAMIC_DISPATCH(find_f16)(values, count, scratch, places);
}

template std::size_t largest_places(std::span<const float>, std::size_t, LargestScratch&,
                                    std::uint16_t*) noexcept;
template std::size_t largest_places(std::span<const BFloat16Bits>, std::size_t, LargestScratch&,
                                    std::uint16_t*) noexcept;
template std::size_t largest_places(std::span<const Float16Bits>, std::size_t, LargestScratch&,
                                    std::uint16_t*) noexcept;

}  // namespace slimgrad::kernels
#endif  // HWY_ONCE
