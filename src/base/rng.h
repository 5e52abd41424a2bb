// Random numbers that are a function of (seed, stream, element index) and of nothing else: not of
// threads, chunks, vector widths or CPUs. The generator is Philox4x32-10 (Salmon et al. 2011,
// "Parallel random numbers: as easy as 1, 2, 3"): a keyed bijection of 128-bit counters.
//
//   key      seed                                  64 bits
//   counter  block index, low word first; stream   64 + 64 bits
//
// **The draw.** Every random decision is "does an event of probability p happen to element i?",
// and it happens if U < p for a U that is uniform in [0, 1) with 79 binary digits:
//
//   U = r / 2^16 + R / 2^79        r: 16 bits, R: 63 bits
//
// r decides unless it equals the leading 16 bits of p, once in 65,536 elements; only then R is
// drawn. So a decision costs 16 random bits, but a probability as small as 2^-79 is not flushed.
//
// **Where r lies.** Four blocks, 4t to 4t + 3, serve the 32 elements of tile t, in an order that
// suits vectors of four or eight 32-bit lanes. Element i of the tile, i = 16 w + 8 h + l, takes
// half h (0: low) of word 2 w + l % 2 of block 4t + l / 2. R of element i is word 0 and the upper
// 31 bits of word 1 of block i in the refinement of the stream.
//
// **Strata.** Pruning decides for many elements and keeps few, and Philox would be most of its
// cost. So four tiles that follow each other share their four blocks: in tile q of the four, r is
// shifted by q quarters, modulo 2^16. Each r is as uniform as before. Elements that share lie 32
// apart, and their decisions are no longer independent but stratified: of four with probabilities
// up to 1/4 at most one happens. Two with probabilities p and p' are correlated by -p p' instead of
// 0, over sqrt(p (1 - p) p' (1 - p')), so about by -p: little where most is pruned, and where their
// signs agree it makes sums of them more exact (docs/maths.md). Rounding, whose probabilities are
// often near 1/2, draws for each element by itself.
//
// **Windows.** What backward keeps is rounded by the gigabyte, and 16 bits for each value would be
// most of its cost. There a word serves eight elements: each has 16 of its bits, from bit 0, 8, 16
// or 24 on, around the end, four of them as they are and four with the highest bit flipped. Every r
// is uniform with 16 digits as before. Two windows share only the lower half of one and the upper
// half of the other, which decides once in 256 elements; the two of a pair, 128 apart, differ
// by half the range, so that of two with probabilities below 1/2 at most one is rounded up.
// 32 words, two tiles, serve 256 elements: element i = 128 t + 32 s + w has the window from bit 8 s
// on of word w, with the highest bit flipped if t = 1. Word 8 k + l of two tiles holds the draws of
// elements 16 k + l and 16 k + 8 + l in its lower and upper half, their highest bits flipped.
#ifndef SLIMGRAD_BASE_RNG_H_
#define SLIMGRAD_BASE_RNG_H_

#include <array>
#include <cstdint>

namespace slimgrad {

using PhiloxWords = std::array<std::uint32_t, 4>;

inline constexpr int kPhiloxRounds = 10;
inline constexpr std::uint32_t kPhiloxMultiplier0 = 0xD2511F53u;
inline constexpr std::uint32_t kPhiloxMultiplier1 = 0xCD9E8D57u;
inline constexpr std::uint32_t kPhiloxWeyl0 = 0x9E3779B9u;
inline constexpr std::uint32_t kPhiloxWeyl1 = 0xBB67AE85u;

constexpr PhiloxWords philox(PhiloxWords counter, std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const std::uint64_t product0 = std::uint64_t{kPhiloxMultiplier0} * counter[0];
    const std::uint64_t product1 = std::uint64_t{kPhiloxMultiplier1} * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key0,
               static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key1,
               static_cast<std::uint32_t>(product0)};
    key0 += kPhiloxWeyl0;
    key1 += kPhiloxWeyl1;
  }
  return counter;
}

// What a draw is for. Streams of one seed are independent.
enum class Stream : std::uint64_t { kPrune = 1, kRound = 2, kSaved = 3 };
inline constexpr std::uint64_t kRefinement = std::uint64_t{1} << 32;

inline constexpr std::uint64_t kTileElements = 32;
inline constexpr std::uint64_t kTileBlocks = 4;
inline constexpr std::uint64_t kPruneStrata = 4;
inline constexpr std::uint64_t kWindowElements = 256;

struct RandomStream {
  std::uint64_t seed;
  std::uint64_t stream;
  std::uint64_t strata;  // how many tiles share their blocks

  constexpr RandomStream(std::uint64_t seed, Stream stream)
      : seed(seed),
        stream(static_cast<std::uint64_t>(stream)),
        strata(stream == Stream::kPrune ? kPruneStrata : 1) {}

  constexpr PhiloxWords block(std::uint64_t index, std::uint64_t of_stream) const {
    return philox(
        {static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
         static_cast<std::uint32_t>(of_stream), static_cast<std::uint32_t>(of_stream >> 32)},
        static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32));
  }

  // What is added to r in one of the strata.
  constexpr std::uint32_t shift_of(std::uint64_t stratum) const {
    return static_cast<std::uint32_t>(stratum * (0x10000 / strata));
  }

  // r, in [0, 2^16).
  constexpr std::uint32_t draw(std::uint64_t element) const {
    const std::uint64_t tile = element / kTileElements;
    const std::uint64_t lane = element % 8;
    const PhiloxWords words = block(tile / strata * kTileBlocks + lane / 2, stream);
    const std::uint32_t word = words[element / 16 % 2 * 2 + lane % 2];
    const std::uint32_t half = element / 8 % 2 == 0 ? word : word >> 16;
    return (half + shift_of(tile % strata)) & 0xffffu;
  }

  // r as a window. REQUIRES: strata is 1.
  constexpr std::uint32_t window(std::uint64_t element) const {
    const std::uint64_t i = element % kWindowElements;
    const std::uint64_t w = i % 32;
    const std::uint64_t first =
        element / kWindowElements * (2 * kTileElements) + w / 8 * 16 + w % 8;
    const std::uint32_t word = (draw(first) | draw(first + 8) << 16) ^ 0x80008000u;
    const auto from = static_cast<int>(i / 32 % 4 * 8);
    const std::uint32_t flipped = i < kWindowElements / 2 ? 0 : 0x8000u;
    return ((from == 0 ? word : word >> from | word << (32 - from)) & 0xffffu) ^ flipped;
  }

  // R, in [0, 2^63).
  constexpr std::uint64_t refinement(std::uint64_t element) const {
    const PhiloxWords words = block(element, stream | kRefinement);
    return (std::uint64_t{words[0]} << 31) | (words[1] >> 1);
  }

  // Whether an event of the given probability happens to the element. `scaled` is the probability
  // times 2^16, which is exact in float. REQUIRES: 0 <= scaled <= 2^16.
  constexpr bool happens_scaled(std::uint64_t element, float scaled) const {
    return decides(draw(element), element, scaled);
  }

  // The same where r, which is draw(element), is known.
  constexpr bool decides(std::uint32_t r, std::uint64_t element, float scaled) const {
    const auto leading = static_cast<std::uint32_t>(scaled);
    if (r != leading) return r < leading;
    const float rest = scaled - static_cast<float>(leading);
    return refinement(element) < static_cast<std::uint64_t>(rest * 0x1p63f);
  }

  constexpr bool happens(std::uint64_t element, float probability) const {
    return happens_scaled(element, probability * 0x1p16f);
  }
};

// A stream at one element whose r was drawn before, together with those of its neighbours.
struct DrawnStream {
  const RandomStream& random;
  std::uint32_t r;

  constexpr bool happens_scaled(std::uint64_t element, float scaled) const {
    return random.decides(r, element, scaled);
  }
  constexpr bool happens(std::uint64_t element, float probability) const {
    return happens_scaled(element, probability * 0x1p16f);
  }
};

}  // namespace slimgrad

#endif  // SLIMGRAD_BASE_RNG_H_
