#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/coding/escapes.cc"
#include <hwy/foreach_target.h>
// After foreach_target, as Highway asks.
#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/coding/escapes.h"
#include "kernels/dispatch.h"

#ifndef SLIMGRAD_KERNELS_ESCAPES_ONCE_
#define SLIMGRAD_KERNELS_ESCAPES_ONCE_
namespace slimgrad::kernels::escapes {

// The specifications; also what is done after the last whole group of 64.
template <class Use>
void for_each_rare_plainly(std::span<const std::uint8_t> symbols, const ByteSet& rare,
                           std::size_t first, Use use) noexcept {
  for (std::size_t i = first; i < symbols.size(); ++i)
    if (rare.contains(symbols[i])) use(i);
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

struct PlacedWriter {
  std::uint8_t *values, *gaps;
  std::size_t count = 0, next = 0;  // `next` is the place after the last one

  void add(std::span<const std::uint8_t> symbols, std::size_t place) noexcept {
    while (place - next > kMostBetween) put(symbols, next + kMostBetween);
    put(symbols, place);
  }

 private:
  void put(std::span<const std::uint8_t> symbols, std::size_t place) noexcept {
    const std::size_t gap = place - next;
    values[count] = symbols[place];
    gaps[2 * count] = static_cast<std::uint8_t>(gap);
    gaps[2 * count + 1] = static_cast<std::uint8_t>(gap >> 8);
    ++count;
    next = place + 1;
  }
};

}  // namespace slimgrad::kernels::escapes
#endif  // SLIMGRAD_KERNELS_ESCAPES_ONCE_

HWY_BEFORE_NAMESPACE();
namespace slimgrad::kernels::escapes::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR
using D = hn::ScalableTag<std::uint8_t>;
using V = hn::Vec<D>;

// Which of the 64 bytes from i on are non-zero in marks(i), a vector for the bytes from i on.
template <class Marks>
HWY_INLINE std::uint64_t marked(std::size_t i, Marks marks) {
  const D d;
  std::uint8_t bytes[16];  // Highway wants room for eight at each
  for (std::size_t v = 0; v < 64; v += hn::Lanes(d))
    hn::StoreMaskBits(d, hn::Ne(marks(i + v), hn::Zero(d)), bytes + v / 8);
  std::uint64_t bits;
  std::memcpy(&bits, bytes, sizeof(bits));
  return bits;
}

// Calls use(i) for every i, in order, that is marked. Returns where whole groups of 64 bytes end.
// They are rare, but not so rare that a branch at each, guessed wrongly, would not take longer than
// all the rest; so the groups that have some are listed first.
template <class Marks, class Use>
HWY_INLINE std::size_t for_each_mark(std::size_t size, Marks marks, Use use) {
  const D d;
  static_assert(hn::MaxLanes(d) <= 64 && 64 % hn::MaxLanes(d) == 0);
  const std::size_t end = size / 64 * 64;
  for (std::size_t first = 0; first < end; first += 64 * 64) {
    std::array<std::size_t, 64> groups;
    std::size_t num_groups = 0;
    for (std::size_t i = first; i < std::min(end, first + 64 * 64); i += 64) {
      V any = marks(i);
      for (std::size_t v = hn::Lanes(d); v < 64; v += hn::Lanes(d)) any = hn::Or(any, marks(i + v));
      groups[num_groups] = i;
      num_groups += hn::AllTrue(d, hn::Eq(any, hn::Zero(d))) ? 0 : 1;
    }
    for (std::size_t k = 0; k < num_groups; ++k)
      for (std::uint64_t bits = marked(groups[k], marks); bits != 0; bits &= bits - 1)
        use(groups[k] + static_cast<std::size_t>(std::countr_zero(bits)));
  }
  return end;
}
#endif

// Calls use(i) for every i, in order, whose symbol is rare. Returns where whole groups end.
template <class Use>
HWY_INLINE std::size_t for_each_rare([[maybe_unused]] std::span<const std::uint8_t> symbols,
                                     [[maybe_unused]] const ByteSet& rare,
                                     [[maybe_unused]] Use use) {
#if HWY_TARGET == HWY_SCALAR
  return 0;
#else
  const D d;
  alignas(16) static constexpr std::uint8_t kBits[16] = {1, 2, 4, 8, 16, 32, 64, 128,
                                                         1, 2, 4, 8, 16, 32, 64, 128};
  const V low_rows = hn::LoadDup128(d, rare.rows[0].data());
  const V high_rows = hn::LoadDup128(d, rare.rows[1].data());
  const V bits = hn::LoadDup128(d, kBits);
  const auto marks = [&](std::size_t i) HWY_ATTR {
    const hn::RepartitionToWide<D> d16;
    const V nibble = hn::Set(d, 15), x = hn::LoadU(d, symbols.data() + i);
    const V low = hn::And(x, nibble);
    const V high = hn::And(hn::BitCast(d, hn::ShiftRight<4>(hn::BitCast(d16, x))), nibble);
    const V row = hn::IfThenElse(hn::Lt(x, hn::Set(d, 128)), hn::TableLookupBytes(low_rows, low),
                                 hn::TableLookupBytes(high_rows, low));
    return hn::And(row, hn::TableLookupBytes(bits, high));
  };
  return for_each_mark(symbols.size(), marks, use);
#endif
}

std::size_t copy(std::span<const std::uint8_t> symbols, const ByteSet& rare, std::uint8_t* values) {
  const std::uint8_t* const begin = values;
  const auto use = [&](std::size_t i) { *values++ = symbols[i]; };
  for_each_rare_plainly(symbols, rare, for_each_rare(symbols, rare, use), use);
  return static_cast<std::size_t>(values - begin);
}

std::size_t copy_with_places(std::span<const std::uint8_t> symbols, const ByteSet& rare,
                             PlacedWriter to) {
  const auto use = [&](std::size_t i) { to.add(symbols, i); };
  for_each_rare_plainly(symbols, rare, for_each_rare(symbols, rare, use), use);
  return to.count;
}

bool put(std::span<std::uint8_t> symbols, std::uint8_t escape,
         std::span<const std::uint8_t> values) {
  std::size_t done = 0, used = 0;
#if HWY_TARGET != HWY_SCALAR
  const D d;
  const V wanted = hn::Set(d, escape);
  const auto marks = [&](std::size_t i) HWY_ATTR {
    return hn::VecFromMask(d, hn::Eq(hn::LoadU(d, symbols.data() + i), wanted));
  };
  // What is more than the values is counted, and nothing else.
  done = for_each_mark(symbols.size(), marks, [&](std::size_t i) {
    if (used < values.size()) symbols[i] = values[used];
    ++used;
  });
#endif
  if (used > values.size()) return false;
  values = values.subspan(used);
  return put_few(symbols.subspan(done), escape, values) && values.empty();
}

}  // namespace slimgrad::kernels::escapes::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace slimgrad::kernels {
namespace escapes {
HWY_EXPORT(copy);
HWY_EXPORT(copy_with_places);
HWY_EXPORT(put);
}  // namespace escapes

std::size_t copy_escapes(std::span<const std::uint8_t> symbols, const ByteSet& rare,
                         std::uint8_t* values) noexcept {
  using namespace escapes;
  if (!use_scalar()) return HWY_DYNAMIC_DISPATCH(copy)(symbols, rare, values);
  std::size_t count = 0;
  for_each_rare_plainly(symbols, rare, 0, [&](std::size_t i) { values[count++] = symbols[i]; });
  return count;
}

bool put_escapes(std::span<std::uint8_t> symbols, std::uint8_t escape,
                 std::span<const std::uint8_t> values) noexcept {
  using namespace escapes;
  if (!use_scalar()) return HWY_DYNAMIC_DISPATCH(put)(symbols, escape, values);
  return put_few(symbols, escape, values) && values.empty();
}

std::size_t copy_placed(std::span<const std::uint8_t> symbols, const ByteSet& rare,
                        std::uint8_t* values, std::uint8_t* gaps) noexcept {
  using namespace escapes;
  PlacedWriter to = {values, gaps};
  if (!use_scalar()) return HWY_DYNAMIC_DISPATCH(copy_with_places)(symbols, rare, to);
  for_each_rare_plainly(symbols, rare, 0, [&](std::size_t i) { to.add(symbols, i); });
  return to.count;
}

bool put_placed(std::span<std::uint8_t> symbols, std::span<const std::uint8_t> values,
                std::span<const std::uint8_t> gaps) noexcept {
  std::size_t next = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    next += gaps[2 * i] + std::size_t{256} * gaps[2 * i + 1];
    if (next >= symbols.size()) return false;
    symbols[next++] = values[i];
  }
  return true;
}

}  // namespace slimgrad::kernels
#endif  // HWY_ONCE
