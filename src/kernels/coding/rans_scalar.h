// The steps of rANS on one state and on one group: shared by the scalar coder and by the parts of
// the vector coder that handle the ends of the data.
#ifndef SLIMGRAD_KERNELS_CODING_RANS_SCALAR_H_
#define SLIMGRAD_KERNELS_CODING_RANS_SCALAR_H_

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/coding/rans.h"

namespace slimgrad::kernels::rans {

static_assert(std::endian::native == std::endian::little, "words are stored as they are in memory");

using States = std::array<std::uint32_t, kRansStates>;

constexpr std::size_t position_of_state(int state) {
  return static_cast<std::size_t>(4 * (state % 8) + state / 8);
}

inline std::uint32_t load_word(const std::uint8_t* bytes) noexcept {
  std::uint16_t word;
  std::memcpy(&word, bytes, 2);
  return word;
}

// Encodes the symbols of one group, the last state first; `end` moves down by two bytes a word.
inline void encode_group(std::span<const std::uint8_t> group, const RansEncodeTable& table,
                         States& states, std::uint8_t*& end) noexcept {
  for (int k = kRansStates - 1; k >= 0; --k) {
    if (position_of_state(k) >= group.size()) continue;
    const RansEncodeEntry entry = table.entry[group[position_of_state(k)]];
    std::uint32_t x = states[k];
    if (x >= (kRansTotal - entry.others()) << RansEncodeEntry::kToLimit) {
      const std::uint16_t word = static_cast<std::uint16_t>(x);
      end -= 2;
      std::memcpy(end, &word, 2);
      x >>= 16;
    }
    const auto quotient =
        static_cast<std::uint32_t>((std::uint64_t{x} * entry.reciprocal) >> 32 >> entry.shift());
    states[k] = x + entry.bias() + quotient * entry.others();
  }
}

// Decodes one symbol; false if a word is needed and there is none.
inline bool decode_symbol(const RansDecodeTable& table, std::uint32_t& x, const std::uint8_t*& next,
                          const std::uint8_t* end, std::uint8_t& symbol) noexcept {
  const std::uint32_t entry = table.slots()[x % kRansTotal];
  symbol = static_cast<std::uint8_t>(entry >> 12);
  x = (entry >> 20) * (x >> kRansBits) + (entry & 0xfff);
  if (x < kRansLow) {
    if (end - next < 2) return false;
    x = x << 16 | load_word(next);
    next += 2;
  }
  return true;
}

// Decodes the groups that are left, checking every read, and then that all ended as it began.
inline DecodeStatus decode_rest(const RansDecodeTable& table, States& states,
                                const std::uint8_t* next, const std::uint8_t* end,
                                std::span<std::uint8_t> symbols) noexcept {
  for (std::size_t first = 0; first < symbols.size(); first += kRansStates) {
    const std::size_t size = std::min<std::size_t>(kRansStates, symbols.size() - first);
    for (int k = 0; k < kRansStates; ++k) {
      const std::size_t position = position_of_state(k);
      if (position >= size) continue;
      if (!decode_symbol(table, states[k], next, end, symbols[first + position]))
        return DecodeStatus::kTruncated;
    }
  }
  if (next != end) return DecodeStatus::kTrailingBytes;
  for (const std::uint32_t x : states)
    if (x != kRansLow) return DecodeStatus::kBadFinalState;
  return DecodeStatus::kOk;
}

// Reads the states. A state outside its range is damage, and the decoders rely on its absence.
inline DecodeStatus load_states(std::span<const std::uint8_t> bytes, States& states) noexcept {
  if (bytes.size() < kRansStateBytes) return DecodeStatus::kTruncated;
  std::memcpy(states.data(), bytes.data(), kRansStateBytes);
  for (const std::uint32_t x : states)
    if (x < kRansLow || x >= kRansLow << 16) return DecodeStatus::kBadFinalState;
  return DecodeStatus::kOk;
}

inline std::span<const std::uint8_t> store_states(const States& states, std::uint8_t* end,
                                                  std::span<std::uint8_t> scratch) noexcept {
  end -= kRansStateBytes;
  std::memcpy(end, states.data(), kRansStateBytes);
  return {end, scratch.data() + scratch.size()};
}

}  // namespace slimgrad::kernels::rans

#endif  // SLIMGRAD_KERNELS_CODING_RANS_SCALAR_H_
