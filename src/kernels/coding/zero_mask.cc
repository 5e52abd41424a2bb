#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/coding/zero_mask.cc"
#include <hwy/foreach_target.h>
// After foreach_target, as Highway asks.
#include <hwy/highway.h>

#include <bit>
#include <cstring>

#include "kernels/coding/zero_mask.h"
#include "kernels/dispatch.h"

#ifndef SLIMGRAD_KERNELS_ZERO_MASK_ONCE_
#define SLIMGRAD_KERNELS_ZERO_MASK_ONCE_
namespace slimgrad::kernels::zero_mask {

// For each mask, the byte shuffles that move the others to the front, and back to their places with
// zeros (0x80 asks for a zero) between them.
struct ShuffleTables {
  alignas(64) std::uint8_t to_front[256][8];
  alignas(64) std::uint8_t to_place[256][8];
  constexpr ShuffleTables() : to_front(), to_place() {
    for (int mask = 0; mask < 256; ++mask)
      for (int k = 0, n = 0; k < 8; ++k) {
        const bool other = mask >> k & 1;
        to_place[mask][k] = static_cast<std::uint8_t>(other ? n : 0x80);
        if (other) to_front[mask][n++] = static_cast<std::uint8_t>(k);
      }
  }
};
inline constexpr ShuffleTables kShuffle;

// The plain forms, which are the specification: from mask `first` on, for all that are left.
inline std::size_t split_plainly(std::span<const std::uint8_t> symbols, std::uint8_t zero,
                                 std::size_t first, std::uint8_t* masks,
                                 std::uint8_t* others) noexcept {
  const std::uint8_t* const begin = others;
  for (std::size_t i = 8 * first; i < symbols.size(); ++i) {
    const unsigned other = symbols[i] != zero ? 1 : 0;
    if (i % 8 == 0) masks[i / 8] = 0;
    masks[i / 8] = static_cast<std::uint8_t>(masks[i / 8] | other << (i % 8));
    if (other) *others++ = static_cast<std::uint8_t>(symbols[i] - zero);
  }
  return static_cast<std::size_t>(others - begin);
}

inline void merge_plainly(const std::uint8_t* masks, const std::uint8_t* others, std::uint8_t zero,
                          std::size_t first, std::span<std::uint8_t> symbols) noexcept {
  for (std::size_t i = 8 * first; i < symbols.size(); ++i)
    symbols[i] = static_cast<std::uint8_t>(zero + (masks[i / 8] >> (i % 8) & 1 ? *others++ : 0));
}

}  // namespace slimgrad::kernels::zero_mask
#endif  // SLIMGRAD_KERNELS_ZERO_MASK_ONCE_

HWY_BEFORE_NAMESPACE();
namespace slimgrad::kernels::zero_mask::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

std::size_t split(std::span<const std::uint8_t> symbols, std::uint8_t zero, std::uint8_t* masks,
                  std::uint8_t* others) {
  const std::uint8_t* const begin = others;
  std::size_t m = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::FixedTag<std::uint8_t, 8> d;
  const auto zeros = hn::Set(d, zero);
  for (; m < symbols.size() / 8; ++m) {
    const auto x = hn::Sub(hn::LoadU(d, symbols.data() + 8 * m), zeros);
    std::uint8_t is_zero[8];  // Highway writes one byte and wants room for eight
    hn::StoreMaskBits(d, hn::Eq(x, hn::Zero(d)), is_zero);
    const std::uint8_t mask = static_cast<std::uint8_t>(~is_zero[0]);
    masks[m] = mask;
    hn::StoreU(hn::TableLookupBytes(x, hn::Load(d, kShuffle.to_front[mask])), d, others);
    others += hwy::PopCount(mask);
  }
#endif
  others += split_plainly(symbols, zero, m, masks, others);
  return static_cast<std::size_t>(others - begin);
}

void merge(const std::uint8_t* masks, const std::uint8_t* others, std::uint8_t zero,
           std::span<std::uint8_t> symbols) {
  std::size_t m = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::FixedTag<std::uint8_t, 8> d;
  const auto zeros = hn::Set(d, zero);
  for (; m < symbols.size() / 8; ++m) {
    const auto shuffle = hn::Load(d, kShuffle.to_place[masks[m]]);
    const auto placed = hn::TableLookupBytesOr0(hn::LoadU(d, others), shuffle);
    hn::StoreU(hn::Add(placed, zeros), d, symbols.data() + 8 * m);
    others += hwy::PopCount(masks[m]);
  }
#endif
  merge_plainly(masks, others, zero, m, symbols);
}

}  // namespace slimgrad::kernels::zero_mask::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace slimgrad::kernels {
namespace zero_mask {
HWY_EXPORT(split);
HWY_EXPORT(merge);
}  // namespace zero_mask

std::size_t split_zeros(std::span<const std::uint8_t> symbols, std::uint8_t zero,
                        std::span<std::uint8_t> masks, std::span<std::uint8_t> others) noexcept {
  using namespace zero_mask;
  if (use_scalar()) return split_plainly(symbols, zero, 0, masks.data(), others.data());
  return HWY_DYNAMIC_DISPATCH(split)(symbols, zero, masks.data(), others.data());
}

std::size_t count_others(std::span<const std::uint8_t> masks, std::size_t num_symbols) noexcept {
  std::size_t count = 0, i = 0;
  for (; i + 8 <= masks.size(); i += 8) {
    std::uint64_t word;
    std::memcpy(&word, masks.data() + i, 8);
    count += static_cast<std::size_t>(std::popcount(word));
  }
  for (; i < masks.size(); ++i) count += static_cast<std::size_t>(std::popcount(masks[i]));
  if (num_symbols % 8 != 0 && masks.back() >> (num_symbols % 8) != 0) return num_symbols + 1;
  return count;
}

void merge_zeros(std::span<const std::uint8_t> masks, std::span<const std::uint8_t> others,
                 std::uint8_t zero, std::span<std::uint8_t> symbols) noexcept {
  using namespace zero_mask;
  if (use_scalar()) return merge_plainly(masks.data(), others.data(), zero, 0, symbols);
  HWY_DYNAMIC_DISPATCH(merge)(masks.data(), others.data(), zero, symbols);
}

}  // namespace slimgrad::kernels
#endif  // HWY_ONCE
