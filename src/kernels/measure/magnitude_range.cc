#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/measure/magnitude_range.cc"
#include <hwy/foreach_target.h>
// After foreach_target, as Highway asks.
#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <type_traits>

#include "kernels/dispatch.h"
#include "kernels/magnitude.h"
#include "kernels/measure/magnitude_range.h"

#ifndef SLIMGRAD_KERNELS_MAGNITUDE_RANGE_ONCE_
#define SLIMGRAD_KERNELS_MAGNITUDE_RANGE_ONCE_
namespace slimgrad::kernels::ranges {

// In the words of the type itself, whose order is that of the magnitudes.
template <typename Word>
struct WordRange {
  Word largest = 0;
  Word smallest = std::numeric_limits<Word>::max();  // less 1, so that zero wraps to the largest
  std::uint64_t nonfinite = 0;
};

template <typename Word>
inline constexpr Word kMagnitude = std::numeric_limits<Word>::max() >> 1;

// The specification; also what vectors leave over.
template <typename Word>
void measure_scalar(std::span<const Word> words, Word infinity, WordRange<Word>& range) noexcept {
  for (const Word word : words) {
    const auto magnitude = static_cast<Word>(word & kMagnitude<Word>);
    const bool finite = magnitude < infinity;
    range.nonfinite += finite ? 0 : 1;
    range.largest = std::max<Word>(range.largest, finite ? magnitude : Word{0});
    range.smallest = std::min<Word>(range.smallest, static_cast<Word>(magnitude - 1));
  }
}

}  // namespace slimgrad::kernels::ranges
#endif  // SLIMGRAD_KERNELS_MAGNITUDE_RANGE_ONCE_

HWY_BEFORE_NAMESPACE();
namespace slimgrad::kernels::ranges::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Whole vectors; returns how many words that was.
template <typename Word>
std::size_t measure(std::span<const Word> words, Word infinity, WordRange<Word>& range) {
  const hn::ScalableTag<Word> d;
  using V = hn::Vec<decltype(d)>;
  const std::size_t lanes = hn::Lanes(d);
  constexpr std::size_t kPiece = 16384;  // vectors, so that a narrow counter cannot overflow
  const V magnitude_mask = hn::Set(d, kMagnitude<Word>), one = hn::Set(d, 1);
  const V largest_finite = hn::Set(d, static_cast<Word>(infinity - 1));
  V largest = hn::Zero(d), smallest = hn::Set(d, std::numeric_limits<Word>::max());
  std::size_t i = 0;
  while (i + lanes <= words.size()) {
    const std::size_t end = std::min(words.size() / lanes * lanes, i + kPiece * lanes);
    V nonfinite = hn::Zero(d);
    for (; i < end; i += lanes) {
      const V magnitude = hn::And(hn::LoadU(d, words.data() + i), magnitude_mask);
      const auto finite = hn::Eq(hn::Min(magnitude, largest_finite), magnitude);
      nonfinite = hn::Add(nonfinite, hn::IfThenZeroElse(finite, one));
      largest = hn::Max(largest, hn::IfThenElseZero(finite, magnitude));
      smallest = hn::Min(smallest, hn::Sub(magnitude, one));
    }
    HWY_ALIGN Word counts[HWY_MAX_BYTES / sizeof(Word)];
    hn::Store(nonfinite, d, counts);
    for (std::size_t k = 0; k < lanes; ++k) range.nonfinite += counts[k];
  }
  HWY_ALIGN Word large[HWY_MAX_BYTES / sizeof(Word)], small[HWY_MAX_BYTES / sizeof(Word)];
  hn::Store(largest, d, large);
  hn::Store(smallest, d, small);
  for (std::size_t k = 0; k < lanes; ++k) {
    range.largest = std::max(range.largest, large[k]);
    range.smallest = std::min(range.smallest, small[k]);
  }
  return i;
}

std::size_t measure2(std::span<const std::uint16_t> words, std::uint16_t infinity,
                     WordRange<std::uint16_t>& range) {
  return measure(words, infinity, range);
}
std::size_t measure4(std::span<const std::uint32_t> words, std::uint32_t infinity,
                     WordRange<std::uint32_t>& range) {
  return measure(words, infinity, range);
}

}  // namespace slimgrad::kernels::ranges::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace slimgrad::kernels {
namespace ranges {
HWY_EXPORT(measure2);
HWY_EXPORT(measure4);
}  // namespace ranges

template <typename T>
MagnitudeRange magnitude_range(std::span<const T> values) noexcept {
  using namespace ranges;
  using Word = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint16_t>;
  constexpr auto kInfinity =
      static_cast<Word>(std::is_same_v<T, float>          ? kInfinityBits
                        : std::is_same_v<T, BFloat16Bits> ? kInfinityBits >> 16
                                                          : 0x7c00u);
  const std::span<const Word> words(reinterpret_cast<const Word*>(values.data()), values.size());
  WordRange<Word> found;
  std::size_t done = 0;
  if (!use_scalar()) {
    if constexpr (sizeof(Word) == 4)
      done = HWY_DYNAMIC_DISPATCH(measure4)(words, kInfinity, found);
    else
      done = HWY_DYNAMIC_DISPATCH(measure2)(words, kInfinity, found);
  }
  measure_scalar(words.subspan(done), kInfinity, found);
  MagnitudeRange range;
  range.nonfinite = found.nonfinite;
  range.largest = magnitude_bits(std::bit_cast<T>(found.largest));
  if (found.smallest != std::numeric_limits<Word>::max())
    range.smallest = magnitude_bits(std::bit_cast<T>(static_cast<Word>(found.smallest + 1)));
  return range;
}

template MagnitudeRange magnitude_range(std::span<const float>) noexcept;
template MagnitudeRange magnitude_range(std::span<const BFloat16Bits>) noexcept;
template MagnitudeRange magnitude_range(std::span<const Float16Bits>) noexcept;

}  // namespace slimgrad::kernels
#endif  // HWY_ONCE
