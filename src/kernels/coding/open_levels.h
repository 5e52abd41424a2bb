// Levels without an upper end (formats/open_levels.h) as symbols and extra bits, and back.
// kernels/coding/uniform.h has the way from values to levels.
//
// noexcept, no allocation, any thread; the same on every CPU.
#ifndef SLIMGRAD_KERNELS_CODING_OPEN_LEVELS_H_
#define SLIMGRAD_KERNELS_CODING_OPEN_LEVELS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "formats/open_levels.h"

namespace slimgrad::kernels {

// The room that split_levels() needs for the bits of this many levels.
constexpr std::size_t extra_bound(std::size_t num_levels) {
  return (num_levels * kMostExtraBits + 7) / 8 + 8;
}

// A string of bits over several calls, the first in the lowest bit of the first byte.
class ExtraWriter {
 public:
  // REQUIRES: `out` has extra_bound() bytes for all levels to come.
  explicit ExtraWriter(std::uint8_t* out) : next_(out) {}

  // REQUIRES: bits < 2^count, count <= 2 kMostExtraBits.
  void put(std::uint64_t bits, int count) noexcept {
    held_ |= bits << num_held_;
    num_held_ += count;
    std::memcpy(next_, &held_, 8);
    next_ += num_held_ / 8;
    held_ >>= num_held_ / 8 * 8;
    num_held_ %= 8;
  }
  // Behind the last byte, which is padded with zeros.
  std::uint8_t* end() const noexcept { return next_ + (num_held_ > 0 ? 1 : 0); }

 private:
  std::uint8_t* next_;
  std::uint64_t held_ = 0;
  int num_held_ = 0;  // below 8 between calls
};

// About 6 Gvalues/s where no level has extra bits, and 1.5 ns more for each that does.
// REQUIRES: |level| <= kLargestLevel; symbols has as many; at most kLevelsAtOnce.
inline constexpr std::size_t kLevelsAtOnce = 4096;
void split_levels(std::span<const std::int32_t> levels, std::uint8_t* symbols,
                  ExtraWriter& extra) noexcept;

// Whether one of the symbols has extra bits. Their distance above the first that has none is the
// largest, modulo 256: a maximum of bytes, which compilers turn into vectors.
inline bool any_has_extra(const std::uint8_t* symbols, std::size_t count) noexcept {
  constexpr int kFirst = kOpenCentre - kLargestDirectLevel;
  std::uint8_t largest = 0;
  for (std::size_t i = 0; i < count; ++i)
    largest = std::max(largest, static_cast<std::uint8_t>(symbols[i] - kFirst));
  return largest > 2 * kLargestDirectLevel;
}

// Calls visit(i, level) for every symbol with extra bits. False if the string does not have exactly
// the bits of these symbols and zeros up to a whole byte. REQUIRES: no symbol is 255.
template <typename Visit>
bool visit_extra_levels(std::span<const std::uint8_t> symbols, std::span<const std::uint8_t> extra,
                        const Visit& visit) noexcept {
  constexpr std::size_t kAtOnce = 64;
  std::uint64_t used = 0;
  const auto take = [&](int count) {  // at most 19 bits: they begin in the first of four bytes
    std::uint32_t word = 0;
    const std::size_t byte = used / 8;
    if (byte < extra.size())
      std::memcpy(&word, extra.data() + byte, std::min<std::size_t>(4, extra.size() - byte));
    const std::uint32_t bits = word >> (used % 8) & ((1u << count) - 1);
    used += static_cast<std::uint64_t>(count);
    return bits;
  };
  for (std::size_t group = 0; group < symbols.size(); group += kAtOnce) {
    const std::size_t count = std::min(kAtOnce, symbols.size() - group);
    if (!any_has_extra(symbols.data() + group, count)) continue;
    for (std::size_t i = group; i < group + count; ++i) {
      if (!has_extra(symbols[i])) continue;
      const int signed_distance = symbols[i] - kOpenCentre;
      const int distance = signed_distance < 0 ? -signed_distance : signed_distance;
      const std::int32_t level =
          first_level(distance) + static_cast<std::int32_t>(take(num_extra_bits(distance)));
      visit(i, signed_distance < 0 ? -level : level);
    }
  }
  if ((used + 7) / 8 != extra.size()) return false;
  return used % 8 == 0 || extra.back() >> (used % 8) == 0;
}

}  // namespace slimgrad::kernels

#endif  // SLIMGRAD_KERNELS_CODING_OPEN_LEVELS_H_
