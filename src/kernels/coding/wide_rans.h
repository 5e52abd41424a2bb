// rANS with states of 64 bits, words of 32 and probabilities of up to 16 bits, for streams that are
// short, mix several tables, and have symbols whose probability is computed as they come: the 32
// states of kernels/coding/rans.h take 128 bytes, one of these eight. The arithmetic is derived
// there.
//
// A state begins at 0 and is never shortened before it reaches 2^63, by a word. So a coder has
// spent nothing before its first symbol (a state that begins at 2^31 takes 31 bits more), and a
// decoder that finds its state below 2^31 takes a word only if one is left. It ends at 0.
//
// A coder writes backwards into the end of a buffer, the last symbol first; a decoder reads the
// state and then words forwards. Raw bits are symbols of equal probability.
#ifndef SLIMGRAD_KERNELS_CODING_WIDE_RANS_H_
#define SLIMGRAD_KERNELS_CODING_WIDE_RANS_H_

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "formats/code_tables.h"

namespace slimgrad::kernels {

inline constexpr std::uint64_t kWideLow = std::uint64_t{1} << 31;
inline constexpr int kMostRawBits = 16;  // in one step

// A frequency and what divides by it: floor(x / f) = (2 x m) >> (64 + s) for x < 2^63, with
// s = ceil(log2 f) and m = ceil(2^(63+s) / f) (Granlund and Montgomery, as in
// kernels/coding/rans.h). A division takes 40 cycles on many CPUs, this takes five.
struct WideFrequency {
  std::uint64_t reciprocal = 0;
  std::uint32_t frequency = 0;
  std::uint8_t shift = 0;

  WideFrequency() = default;
  // REQUIRES: of > 0.
  explicit WideFrequency(std::uint32_t of)
      : frequency(of), shift(static_cast<std::uint8_t>(std::bit_width(of - 1))) {
    // 2^(63+s) does not fit: it is divided in two steps.
    const std::uint64_t power = std::uint64_t{1} << 63, low = std::uint64_t{1} << shift;
    const std::uint64_t quotient = power / of, rest = power % of;
    reciprocal = quotient * low + (rest * low + of - 1) / of;
  }
  std::uint64_t quotient_of(std::uint64_t x) const noexcept {
    __extension__ using Product = unsigned __int128;
    return static_cast<std::uint64_t>(Product{2 * x} * reciprocal >> 64) >> shift;
  }
};

struct WideSymbol {
  WideFrequency frequency;
  std::uint32_t start = 0;
};

// REQUIRES: room in front of `end` for a word a step and a state.
class WideRansEncoder {
 public:
  std::uint64_t state = 0;

  // `frequency` of 2^bits, from `start` on. bits <= 16.
  void put(std::uint32_t start, const WideFrequency& frequency, int bits,
           std::uint8_t*& end) noexcept {
    shorten(frequency.frequency, bits, end);
    const std::uint64_t quotient = frequency.quotient_of(state);
    state = (quotient << bits) + (state - quotient * frequency.frequency) + start;
  }
  // The lowest bits come first when they are read.
  void put_raw(std::uint64_t value, int bits, std::uint8_t*& end) noexcept {
    while (bits > 0) {
      const int above = (bits - 1) / kMostRawBits * kMostRawBits, step = bits - above;
      shorten(1, step, end);
      state = state << step | (value >> above & ((1u << step) - 1));
      bits = above;
    }
  }
  void store(std::uint8_t*& end) const noexcept {
    end -= 8;
    std::memcpy(end, &state, 8);
  }

 private:
  // Without a branch, which would not be foreseen: every step writes a word, and keeps it if the
  // state was too long.
  void shorten(std::uint64_t frequency, int bits, std::uint8_t*& end) noexcept {
    const auto word = static_cast<std::uint32_t>(state);
    std::memcpy(end - 4, &word, 4);
    const unsigned is_long = state >= (kWideLow << 32 >> bits) * frequency;
    end -= 4 * is_long;
    state >>= 32 * is_long;
  }
};

// Words that several decoders share.
struct WideRansWords {
  const std::uint8_t* next;
  const std::uint8_t* end;
};

class WideRansDecoder {
 public:
  std::uint64_t state = 0;

  // False if there are no eight bytes, or for a state that no encoder ends with.
  bool load(WideRansWords& words) noexcept {
    if (words.end - words.next < 8) return false;
    std::memcpy(&state, words.next, 8);
    words.next += 8;
    return state < kWideLow << 32;
  }
  // Where the next symbol's range holds this number, the symbol was coded; then take().
  std::uint32_t slot(int bits) const noexcept {
    return static_cast<std::uint32_t>(state) & ((1u << bits) - 1);
  }
  // `offset`: the slot less the start of the range.
  void take(std::uint32_t offset, std::uint32_t frequency, int bits,
            WideRansWords& words) noexcept {
    state = frequency * (state >> bits) + offset;
    if (words.end - words.next < 4) return;
    // Without a branch, which would not be foreseen.
    std::uint32_t word;
    std::memcpy(&word, words.next, 4);
    const unsigned is_short = state < kWideLow;
    words.next += 4 * is_short;
    state = state << 32 * is_short | (word & (0 - is_short));
  }
  // By a table of kernels/coding/rans.h.
  std::uint8_t symbol(const std::uint32_t* slots, WideRansWords& words) noexcept {
    const std::uint32_t entry = slots[slot(kRansBits)];
    take(entry & 0xfff, entry >> 20, kRansBits, words);
    return static_cast<std::uint8_t>(entry >> 12);
  }
  std::uint64_t raw(int bits, WideRansWords& words) noexcept {
    std::uint64_t value = 0;
    for (int done = 0; done < bits; done += kMostRawBits) {
      const int step = std::min(kMostRawBits, bits - done);
      value |= std::uint64_t{slot(step)} << done;
      take(0, 1, step, words);
    }
    return value;
  }
};

}  // namespace slimgrad::kernels

#endif  // SLIMGRAD_KERNELS_CODING_WIDE_RANS_H_
