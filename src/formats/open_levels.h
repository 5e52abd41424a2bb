// Levels of a uniform quantizer without an upper end, as symbols of 8 bits and a few more bits.
//
// Levels -111 to 111 have a symbol each, 127 plus the level. A larger magnitude k falls into one of
// 16 groups for each sign, the octaves of v = k - 96: with e = floor(log2 v), which is 4 to 19,
// group e - 4 has 2^e levels, which the lower e bits of v tell apart. Groups are coded at their
// entropy like all symbols; within a group levels are nearly equally likely, so that these bits are
// stored as they are. For a normal law of 8 bits that costs 0.008 bits a value more than symbols
// for all levels would, for laws with heavier tails less.
#ifndef SLIMGRAD_FORMATS_OPEN_LEVELS_H_
#define SLIMGRAD_FORMATS_OPEN_LEVELS_H_

#include <bit>
#include <cstdint>

namespace slimgrad {

inline constexpr int kOpenBits = 0;  // what a header has for the bits of such levels
inline constexpr int kOpenCentre = 127, kNumOpenSymbols = 2 * kOpenCentre + 1;
inline constexpr int kLargestDirectLevel = 111;
inline constexpr std::int32_t kGroupOffset = 96;
inline constexpr int kFirstOctave = 4, kLastOctave = 19;  // which is kMostExtraBits
inline constexpr int kMostExtraBits = kLastOctave;
inline constexpr std::int32_t kLargestLevel = kGroupOffset + (1 << (kLastOctave + 1)) - 1;

constexpr bool has_extra(std::uint8_t symbol) {
  return symbol < kOpenCentre - kLargestDirectLevel || symbol > kOpenCentre + kLargestDirectLevel;
}

// Symbols by their distance from the centre, 0 to kOpenCentre.
constexpr int distance_of_octave(int octave) {
  return kLargestDirectLevel + 1 + octave - kFirstOctave;
}
constexpr int num_extra_bits(int distance) {
  return distance <= kLargestDirectLevel ? 0 : distance - distance_of_octave(0);
}
// The smallest magnitude of a level; behind the last symbol, the first that has none.
constexpr std::int32_t first_level(int distance) {
  return distance <= kLargestDirectLevel ? distance
                                         : kGroupOffset + (1 << num_extra_bits(distance));
}

static_assert(first_level(kLargestDirectLevel + 1) == kLargestDirectLevel + 1);
static_assert(num_extra_bits(kOpenCentre) == kMostExtraBits);
static_assert(first_level(kOpenCentre + 1) == kLargestLevel + 1);

}  // namespace slimgrad

#endif  // SLIMGRAD_FORMATS_OPEN_LEVELS_H_
