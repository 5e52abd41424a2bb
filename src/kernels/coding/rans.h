// Range asymmetric numeral systems (rANS) over 8-bit symbols, 32 states interleaved in one stream.
//
// A state x lives in [2^15, 2^31). To encode symbol s with frequency f of 2^n, n = 12, and
// cumulative start c: while x >= f 2^(31-n), write its low 16 bits as a word and shift them out (at
// most once); then x <- floor(x / f) 2^n + (x mod f) + c. Decoding is the exact reverse, so the
// encoder walks the symbols backwards and writes its words backwards; the decoder reads both
// forwards.
//
// States below 2^31 leave the sign bit to vector code, as a mark, and make a 32-bit reciprocal
// exact. The loss against the ideal code is second order in 2^n / x, because the first-order terms
// of the rounding cancel when averaged over the symbols; it is below 1e-4 bit.
//
// Escapes. With 12 bits the decoder's table (16 KiB) stays in the L1 cache; but hundreds of symbols
// that deserve far less than 1/4096 would take a good part of it. So some may have no frequency,
// and another symbol stands for them: either the escape, which marks their places and itself is
// always replaced, or the commonest, if their places are known otherwise. The decoder gives what
// stands for them, and the caller puts the values in their places (kernels/coding/escapes.h).
//
// Interleaving. Symbols go in groups of 32. Position 4 i + v of a group belongs to state 8 v + i,
// for v < 4 and i < 8, and within a group states act in the order 0, 1, ..., 31. So state 8 v + i
// is lane i of vector v, and byte v of 32-bit word i of the 32 symbols: a vector decoder assembles
// its output with shifts instead of packing. The last group may be partial: its missing positions
// are skipped.
//
// Bytes: the 32 states as little-endian uint32, then the 16-bit little-endian words. Every state
// starts at 2^15 before encoding, which the decoder checks at its end.
//
// The scalar functions are the specification. The others give the same bytes, on every CPU.
// Everything here is noexcept, allocates nothing and may run on any thread.
#ifndef SLIMGRAD_KERNELS_CODING_RANS_H_
#define SLIMGRAD_KERNELS_CODING_RANS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "formats/code_tables.h"

namespace slimgrad::kernels {

inline constexpr int kRansStates = 32;
inline constexpr std::uint32_t kRansLow = 1u << 15;  // the states' lower bound and start
inline constexpr std::size_t kRansStateBytes = 4 * kRansStates;

// All that an encoder needs of a symbol, in one load of 64 bits.
//
// x' = floor(x / f) 2^n + x mod f + c = x + bias + q (2^n - f) with q = floor(x / f) and bias = c.
// For x < 2^31, s = ceil(log2 f) and reciprocal = ceil(2^(31+s) / f) < 2^32, it is
// q = (x * reciprocal) >> (31 + s): the excess is x e / (f 2^(31+s)) < 1/f, where e < f <= 2^s
// (Granlund and Montgomery). The product's upper 32 bits are taken first, then shift = s - 1 more.
// For f = 1 that would be -1; there the reciprocal 2^32 - 1 gives q = x - 1, and a bias that is
// larger by 2^n - 1 makes up for it (Giesen).
struct RansEncodeEntry {
  static constexpr int kBiasAt = 13, kShiftAt = 28;
  static constexpr std::uint32_t kOthers = 0xfff, kBias = 0x1fff;
  // others << kToLimit is 2^31 less the least x that has to be shortened first: added to x it sets
  // the sign bit of those.
  static constexpr int kToLimit = 31 - kRansBits;

  std::uint32_t reciprocal = 0;
  std::uint32_t fields = 0;  // 2^n - f | bias << 13 | shift << 28

  constexpr std::uint32_t others() const { return fields & kOthers; }
  constexpr std::uint32_t bias() const { return fields >> kBiasAt & kBias; }
  constexpr std::uint32_t shift() const { return fields >> kShiftAt; }
};

struct RansEncodeTable {
  // Symbols without a frequency have the escape's, or if there is none the commonest symbol's.
  alignas(64) std::array<RansEncodeEntry, 256> entry;
};

struct RansDecodeTable {
  // For each of the 2^n slots: frequency << 20 | symbol << 12 | (slot - start). The two that a
  // state waits for are got by one operation each, and the symbol when there is time.
  static constexpr std::size_t kMargin = 16;  // on either side, for loads wider than a slot
  alignas(64) std::array<std::uint32_t, kRansTotal + 2 * kMargin> padded;

  std::uint32_t* slots() noexcept { return padded.data() + kMargin; }
  const std::uint32_t* slots() const noexcept { return padded.data() + kMargin; }
};

// REQUIRES: is_valid(frequencies).
void build_encode_table(const RansFrequencies& frequencies, RansEncodeTable& table) noexcept;
void build_decode_table(const RansFrequencies& frequencies, RansDecodeTable& table) noexcept;

// What rans_encode may need in the worst case: at most one word a symbol, and room in front for a
// vector store that writes more than it keeps.
constexpr std::size_t rans_encode_bound(std::size_t num_symbols) {
  return kRansStateBytes + 2 * num_symbols + 16;
}

// Encodes backwards into the end of `scratch` and returns the part that holds the bytes.
// REQUIRES: scratch has rans_encode_bound(symbols.size()) bytes.
std::span<const std::uint8_t> rans_encode(std::span<const std::uint8_t> symbols,
                                          const RansEncodeTable& table,
                                          std::span<std::uint8_t> scratch) noexcept;
std::span<const std::uint8_t> rans_encode_scalar(std::span<const std::uint8_t> symbols,
                                                 const RansEncodeTable& table,
                                                 std::span<std::uint8_t> scratch) noexcept;

// Fills `symbols` from exactly `bytes`. On a status other than kOk the symbols are unspecified.
DecodeStatus rans_decode(std::span<const std::uint8_t> bytes, const RansDecodeTable& table,
                         std::span<std::uint8_t> symbols) noexcept;
DecodeStatus rans_decode_scalar(std::span<const std::uint8_t> bytes, const RansDecodeTable& table,
                                std::span<std::uint8_t> symbols) noexcept;

// Two streams with the same table at once, which is faster than one after the other.
DecodeStatus rans_decode_pair(std::span<const std::uint8_t> bytes, std::span<std::uint8_t> symbols,
                              std::span<const std::uint8_t> more_bytes,
                              std::span<std::uint8_t> more_symbols,
                              const RansDecodeTable& table) noexcept;

}  // namespace slimgrad::kernels

#endif  // SLIMGRAD_KERNELS_CODING_RANS_H_
