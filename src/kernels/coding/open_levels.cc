#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/coding/open_levels.cc"
#include <hwy/foreach_target.h>
// After foreach_target, as Highway asks.
#include <hwy/highway.h>

#include <bit>

#include "kernels/coding/open_levels.h"
#include "kernels/dispatch.h"

#ifndef SLIMGRAD_KERNELS_OPEN_LEVELS_ONCE_
#define SLIMGRAD_KERNELS_OPEN_LEVELS_ONCE_
namespace slimgrad::kernels::open_levels {

// The specification; also what vectors leave over. Writes the offsets v of the levels with extra
// bits to `offsets`, in order, and returns where they end.
inline std::uint32_t* split_scalar(std::span<const std::int32_t> levels, std::uint8_t* symbols,
                                   std::uint32_t* offsets) noexcept {
  for (std::size_t i = 0; i < levels.size(); ++i) {
    const std::int32_t magnitude = levels[i] < 0 ? -levels[i] : levels[i];
    int distance = magnitude;
    if (magnitude > kLargestDirectLevel) {
      *offsets = static_cast<std::uint32_t>(magnitude - kGroupOffset);
      distance = distance_of_octave(std::bit_width(*offsets++) - 1);
    }
    symbols[i] = static_cast<std::uint8_t>(kOpenCentre + (levels[i] < 0 ? -distance : distance));
  }
  return offsets;
}

}  // namespace slimgrad::kernels::open_levels
#endif  // SLIMGRAD_KERNELS_OPEN_LEVELS_ONCE_

HWY_BEFORE_NAMESPACE();
namespace slimgrad::kernels::open_levels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// split_scalar() for whole vectors; returns how many levels that was. The octave of an offset is
// the exponent of it as a float32, in which it is exact.
std::size_t split(std::span<const std::int32_t> levels, std::uint8_t* symbols,
                  std::uint32_t*& offsets) {
  const hn::ScalableTag<std::int32_t> d;
  const hn::RebindToUnsigned<decltype(d)> u32;
  const hn::RebindToFloat<decltype(d)> f32;
  const hn::Rebind<std::uint8_t, decltype(d)> d8;
  const std::size_t lanes = hn::Lanes(d);
  const auto centre = hn::Set(d, kOpenCentre), largest = hn::Set(d, kLargestDirectLevel);
  const auto to_distance = hn::Set(d, distance_of_octave(0) - 127);  // of a biased exponent
  std::size_t i = 0;
  for (; i + lanes <= levels.size(); i += lanes) {
    const auto level = hn::LoadU(d, levels.data() + i);
    const auto magnitude = hn::Abs(level);
    const auto far = hn::Gt(magnitude, largest);
    auto distance = magnitude;
    if (!hn::AllFalse(d, far)) {
      const auto offset = hn::Sub(magnitude, hn::Set(d, kGroupOffset));
      const auto exponent =
          hn::BitCast(d, hn::ShiftRight<23>(hn::BitCast(u32, hn::ConvertTo(f32, offset))));
      distance = hn::IfThenElse(far, hn::Add(exponent, to_distance), magnitude);
      offsets +=
          hn::CompressStore(hn::BitCast(u32, offset), hn::RebindMask(u32, far), u32, offsets);
    }
    const auto symbol =
        hn::Add(centre, hn::IfThenElse(hn::Lt(level, hn::Zero(d)), hn::Neg(distance), distance));
    hn::StoreU(hn::U8FromU32(hn::BitCast(u32, symbol)), d8, symbols + i);
  }
  return i;
}

}  // namespace slimgrad::kernels::open_levels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace slimgrad::kernels {
namespace open_levels {
HWY_EXPORT(split);
}  // namespace open_levels

void split_levels(std::span<const std::int32_t> levels, std::uint8_t* symbols,
                  ExtraWriter& extra) noexcept {
  std::uint32_t offsets[kLevelsAtOnce + 16];  // CompressStore may write a whole vector
  std::uint32_t* end = offsets;
  const std::size_t done =
      use_scalar() ? 0 : HWY_DYNAMIC_DISPATCH(open_levels::split)(levels, symbols, end);
  end = open_levels::split_scalar(levels.subspan(done), symbols + done, end);
  // Two at a time: each call waits for the one before.
  const auto bits_of = [](std::uint32_t v) { return std::bit_width(v) - 1; };
  const auto low = [&](std::uint32_t v) { return std::uint64_t{v ^ (1u << bits_of(v))}; };
  const std::uint32_t* next = offsets;
  for (; next + 2 <= end; next += 2) {
    const int first = bits_of(next[0]);
    extra.put(low(next[0]) | low(next[1]) << first, first + bits_of(next[1]));
  }
  if (next < end) extra.put(low(*next), bits_of(*next));
}

}  // namespace slimgrad::kernels
#endif  // HWY_ONCE
