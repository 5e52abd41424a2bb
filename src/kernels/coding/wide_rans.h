// rANS with one state of 64 bits, words of 32 and probabilities of up to 16 bits, for streams that
// are short, mix several tables, and have symbols whose probability is computed as they come: eight
// bytes of state, where the 32 states of kernels/coding/rans.h have 128. The arithmetic is derived
// there; the state lives in [2^31, 2^63).
//
// A coder writes backwards into the end of a buffer, the last symbol first; a decoder reads the
// state and then words forwards. Raw bits are symbols of equal probability.
#ifndef SLIMGRAD_KERNELS_CODING_WIDE_RANS_H_
#define SLIMGRAD_KERNELS_CODING_WIDE_RANS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "formats/code_tables.h"

namespace slimgrad::kernels {

inline constexpr std::uint64_t kWideLow = std::uint64_t{1} << 31;
inline constexpr int kMostRawBits = 16;  // in one step

// REQUIRES: room in front of `end` for a word a step and a state.
class WideRansEncoder {
 public:
  std::uint64_t state = kWideLow;

  // `frequency` of 2^bits, from `start` on. bits <= 16.
  void put(std::uint32_t start, std::uint32_t frequency, int bits, std::uint8_t*& end) noexcept {
    if (state >= (kWideLow >> bits << 32) * frequency) {
      const auto word = static_cast<std::uint32_t>(state);
      end -= 4;
      std::memcpy(end, &word, 4);
      state >>= 32;
    }
    state = (state / frequency << bits) + state % frequency + start;
  }
  // The lowest bits come first when they are read.
  void put_raw(std::uint64_t value, int bits, std::uint8_t*& end) noexcept {
    while (bits > 0) {
      const int above = (bits - 1) / kMostRawBits * kMostRawBits;
      put(static_cast<std::uint32_t>(value >> above & ((1u << (bits - above)) - 1)), 1,
          bits - above, end);
      bits = above;
    }
  }
  void store(std::uint8_t*& end) const noexcept {
    end -= 8;
    std::memcpy(end, &state, 8);
  }
};

// Words that several decoders share.
struct WideRansWords {
  const std::uint8_t* next;
  const std::uint8_t* end;
  bool truncated = false;

  std::uint32_t take() noexcept {
    if (end - next < 4) [[unlikely]] {
      truncated = true;
      return 0;
    }
    std::uint32_t word;
    std::memcpy(&word, next, 4);
    next += 4;
    return word;
  }
};

class WideRansDecoder {
 public:
  std::uint64_t state = 0;

  // False for a state that no encoder ends with.
  bool load(WideRansWords& words) noexcept {
    const std::uint64_t low = words.take();
    state = std::uint64_t{words.take()} << 32 | low;
    return !words.truncated && state >= kWideLow && state < kWideLow << 32;
  }
  // Where the next symbol's range holds this number, the symbol was coded; then take().
  std::uint32_t slot(int bits) const noexcept {
    return static_cast<std::uint32_t>(state) & ((1u << bits) - 1);
  }
  // `offset`: the slot less the start of the range.
  void take(std::uint32_t offset, std::uint32_t frequency, int bits,
            WideRansWords& words) noexcept {
    state = frequency * (state >> bits) + offset;
    if (state < kWideLow) state = state << 32 | words.take();
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
