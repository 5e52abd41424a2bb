#include "kernels/compact.h"

#include <array>
#include <bit>

#include "kernels/dispatch.h"

#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/compact.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/highway.h>

#ifndef SLIMGRAD_KERNELS_COMPACT_TABLE_
#define SLIMGRAD_KERNELS_COMPACT_TABLE_
namespace slimgrad::kernels {

// For each set of lanes, as bits: which they are, from the front; then whatever.
inline constexpr auto kKeptLanes = [] {
  std::array<std::array<std::uint8_t, 8>, 256> table{};
  for (std::size_t bits = 0; bits < 256; ++bits) {
    std::size_t kept = 0;
    for (std::uint8_t lane = 0; lane < 8; ++lane)
      if (bits >> lane & 1) table[bits][kept++] = lane;
  }
  return table;
}();

}  // namespace slimgrad::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace slimgrad::kernels {
namespace HWY_NAMESPACE {

#if HWY_MAX_BYTES >= 32

namespace hn = hwy::HWY_NAMESPACE;

// Without a branch on the data, which no predictor could guess: a vector's survivors are moved to
// its front, the whole vector is written, and the next one overwrites what was not a survivor.
// (Highway's Compress does this too, but GCC copies its table to the stack for every vector.)
std::size_t compact_values(const float* x, std::size_t num_values, std::int32_t first,
                           std::int32_t step, float* values, std::int32_t* offsets) {
  const hn::CappedTag<float, 8> f32;
  const hn::RebindToSigned<decltype(f32)> i32;
  const hn::Rebind<std::uint8_t, decltype(f32)> u8;
  constexpr std::size_t kLanes = 8;
  auto positions = hn::Add(hn::Set(i32, first), hn::Mul(hn::Iota(i32, 0), hn::Set(i32, step)));
  const auto advance = hn::Set(i32, step * static_cast<std::int32_t>(kLanes));
  std::size_t num_kept = 0, i = 0;
  for (; i + kLanes <= num_values; i += kLanes) {
    const auto v = hn::LoadU(f32, x + i);
    const auto kept = hn::Not(hn::Eq(v, hn::Zero(f32)));  // Ne would lose NaN.
    std::uint8_t bits[kLanes];
    hn::StoreMaskBits(f32, kept, bits);
    const auto lanes = hn::PromoteTo(i32, hn::LoadU(u8, kKeptLanes[bits[0]].data()));
    hn::StoreU(hn::TableLookupLanes(v, hn::IndicesFromVec(f32, lanes)), f32, values + num_kept);
    hn::StoreU(hn::TableLookupLanes(positions, hn::IndicesFromVec(i32, lanes)), i32,
               offsets + num_kept);
    num_kept += static_cast<std::size_t>(std::popcount(bits[0]));
    positions = hn::Add(positions, advance);
  }
  return num_kept + compact_scalar(x + i, num_values - i,
                                   first + static_cast<std::int32_t>(i) * step, step,
                                   values + num_kept, offsets + num_kept);
}

#else

std::size_t compact_values(const float* x, std::size_t num_values, std::int32_t first,
                           std::int32_t step, float* values, std::int32_t* offsets) {
  return compact_scalar(x, num_values, first, step, values, offsets);
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace slimgrad::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace slimgrad::kernels {
namespace {

HWY_EXPORT(compact_values);

}  // namespace

std::size_t compact_scalar(const float* x, std::size_t num_values, std::int32_t first,
                           std::int32_t step, float* values, std::int32_t* offsets) noexcept {
  std::size_t num_kept = 0;
  for (std::size_t i = 0; i < num_values; ++i) {
    values[num_kept] = x[i];
    offsets[num_kept] = first + static_cast<std::int32_t>(i) * step;
    num_kept += x[i] != 0;
  }
  return num_kept;
}

std::size_t compact(const float* x, std::size_t num_values, std::int32_t first, std::int32_t step,
                    float* values, std::int32_t* offsets) noexcept {
  if (use_scalar()) return compact_scalar(x, num_values, first, step, values, offsets);
  return HWY_DYNAMIC_DISPATCH(compact_values)(x, num_values, first, step, values, offsets);
}

}  // namespace slimgrad::kernels
#endif  // HWY_ONCE
