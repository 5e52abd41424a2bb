#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/escapes.cc"
#include <hwy/foreach_target.h>
// After foreach_target, as Highway asks.
#include <hwy/highway.h>

#include "kernels/escapes.h"

#ifndef SLIMGRAD_KERNELS_ESCAPES_ONCE_
#define SLIMGRAD_KERNELS_ESCAPES_ONCE_
namespace slimgrad::escapes {

// The specification; also what is done where a vector has a rare symbol.
inline void copy_few(std::span<const std::uint8_t> symbols, const ByteSet& rare,
                     std::uint8_t*& values) noexcept {
  for (const std::uint8_t symbol : symbols)
    if (rare.contains(symbol)) *values++ = symbol;
}

inline bool put_few(std::span<std::uint8_t> symbols, std::uint8_t escape,
                    std::span<const std::uint8_t>& values) noexcept {
  for (std::uint8_t& symbol : symbols) {
    if (symbol != escape) continue;
    if (values.empty()) return false;
    symbol = values[0];
    values = values.subspan(1);
  }
  return true;
}

}  // namespace slimgrad::escapes
#endif  // SLIMGRAD_KERNELS_ESCAPES_ONCE_

HWY_BEFORE_NAMESPACE();
namespace slimgrad::escapes::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

std::size_t copy(std::span<const std::uint8_t> symbols, const ByteSet& rare, std::uint8_t* values) {
  const std::uint8_t* const begin = values;
  std::size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::ScalableTag<std::uint8_t> d;
  alignas(16) static constexpr std::uint8_t kBits[16] = {1, 2, 4, 8, 16, 32, 64, 128,
                                                         1, 2, 4, 8, 16, 32, 64, 128};
  const auto low_rows = hn::LoadDup128(d, rare.rows[0].data());
  const auto high_rows = hn::LoadDup128(d, rare.rows[1].data());
  const auto bits = hn::LoadDup128(d, kBits);
  const auto nibble = hn::Set(d, 15), top = hn::Set(d, 128);
  for (; i + hn::Lanes(d) <= symbols.size(); i += hn::Lanes(d)) {
    const auto x = hn::LoadU(d, symbols.data() + i);
    const auto low = hn::And(x, nibble);
    const auto high = hn::And(hn::BitCast(d, hn::ShiftRight<4>(hn::BitCast(
                                                 hn::RepartitionToWide<decltype(d)>(), x))),
                              nibble);
    const auto row = hn::IfThenElse(hn::Eq(hn::And(x, top), top),
                                    hn::TableLookupBytes(high_rows, low),
                                    hn::TableLookupBytes(low_rows, low));
    const auto found = hn::And(row, hn::TableLookupBytes(bits, high));
    if (HWY_LIKELY(hn::AllTrue(d, hn::Eq(found, hn::Zero(d))))) continue;
    copy_few(symbols.subspan(i, hn::Lanes(d)), rare, values);
  }
#endif
  copy_few(symbols.subspan(i), rare, values);
  return static_cast<std::size_t>(values - begin);
}

bool put(std::span<std::uint8_t> symbols, std::uint8_t escape,
         std::span<const std::uint8_t> values) {
  std::size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::ScalableTag<std::uint8_t> d;
  const auto wanted = hn::Set(d, escape);
  for (; i + hn::Lanes(d) <= symbols.size(); i += hn::Lanes(d)) {
    const auto found = hn::Eq(hn::LoadU(d, symbols.data() + i), wanted);
    if (HWY_LIKELY(hn::AllFalse(d, found))) continue;
    if (!put_few(symbols.subspan(i, hn::Lanes(d)), escape, values)) return false;
  }
#endif
  return put_few(symbols.subspan(i), escape, values) && values.empty();
}

}  // namespace slimgrad::escapes::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace slimgrad {
namespace escapes {
HWY_EXPORT(copy);
HWY_EXPORT(put);
}  // namespace escapes

std::size_t copy_escapes(std::span<const std::uint8_t> symbols, const ByteSet& rare,
                         std::uint8_t* values) noexcept {
  using namespace escapes;
  return HWY_DYNAMIC_DISPATCH(copy)(symbols, rare, values);
}

bool put_escapes(std::span<std::uint8_t> symbols, std::uint8_t escape,
                 std::span<const std::uint8_t> values) noexcept {
  using namespace escapes;
  return HWY_DYNAMIC_DISPATCH(put)(symbols, escape, values);
}

}  // namespace slimgrad
#endif  // HWY_ONCE
