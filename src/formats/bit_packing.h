// Codes of 2 to 8 bits, packed without gaps, and back.
//
// The packed array is one little-endian string of bits: bit j of the string is bit j % 8 of byte
// j / 8, and code i of `bits` bits lies at bits i * bits to (i + 1) * bits - 1, its lowest bit
// first. So eight codes fill exactly `bits` bytes, and the last byte is padded with zeros.
//
//   bits   byte 0     byte 1     byte 2        (digit: code number; leftmost: bit 7)
//    2     33221100   77665544
//    3     22111000   54443332   77766655
//    4     11110000   33332222   55554444
//    6     11000000   22221111   33333322      four codes in three bytes
//    8     00000000   11111111   22222222
//
// Both directions work on eight codes in one 64-bit word, in three steps of joining neighbours:
// bytes into pairs, pairs into fours, fours into the eight.
#ifndef SLIMGRAD_FORMATS_BIT_PACKING_H_
#define SLIMGRAD_FORMATS_BIT_PACKING_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace slimgrad {

static_assert(std::endian::native == std::endian::little,
              "the 64-bit words below are read and written as bytes");

constexpr std::size_t packed_bytes(std::size_t num_codes, int bits) {
  return num_codes / 8 * static_cast<std::size_t>(bits) +
         (num_codes % 8 * static_cast<std::size_t>(bits) + 7) / 8;
}

// Eight codes, one in each byte, to the lowest 8 * bits bits. REQUIRES: codes < 2^bits.
template <int bits>
constexpr std::uint64_t join_codes(std::uint64_t codes) {
  constexpr std::uint64_t kEvenBytes = 0x00ff00ff00ff00ffu;
  constexpr std::uint64_t kEvenPairs = 0x0000ffff0000ffffu;
  codes = (codes & kEvenBytes) | ((codes & ~kEvenBytes) >> (8 - bits));
  codes = (codes & kEvenPairs) | ((codes & ~kEvenPairs) >> (16 - 2 * bits));
  return (codes & 0xffffffffu) | (codes >> 32 << (4 * bits));
}

template <int bits>
constexpr std::uint64_t split_codes(std::uint64_t joined) {
  constexpr std::uint64_t kCode = (std::uint64_t{1} << bits) - 1;
  constexpr std::uint64_t kPair = (std::uint64_t{1} << (2 * bits)) - 1;
  constexpr std::uint64_t kFour = (std::uint64_t{1} << (4 * bits)) - 1;
  constexpr std::uint64_t kPairs = kPair | kPair << 32;
  constexpr std::uint64_t kCodes = kCode | kCode << 16 | kCode << 32 | kCode << 48;
  joined = (joined & kFour) | (joined >> (4 * bits) & kFour) << 32;
  joined = (joined & kPairs) | (joined >> (2 * bits) & kPairs) << 16;
  return (joined & kCodes) | (joined >> bits & kCodes) << 8;
}

// One byte a code in, packed_bytes(num_codes, bits) bytes out.
template <int bits>
inline void pack_codes(const std::uint8_t* codes, std::size_t num_codes,
                       std::uint8_t* packed) noexcept {
  std::size_t i = 0;
  if constexpr (bits == 4) {  // The common width, in a form that compilers turn into vectors.
    const std::size_t num_pairs = num_codes / 8 * 4;
    for (std::size_t j = 0; j < num_pairs; ++j)
      packed[j] = static_cast<std::uint8_t>(codes[2 * j] | codes[2 * j + 1] << 4);
    i = 2 * num_pairs;
    packed += num_pairs;
  }
  for (; i + 8 <= num_codes; i += 8, packed += bits) {
    std::uint64_t eight;
    std::memcpy(&eight, codes + i, 8);
    eight = join_codes<bits>(eight);
    std::memcpy(packed, &eight, bits);
  }
  if (i < num_codes) {
    std::uint64_t rest = 0;
    std::memcpy(&rest, codes + i, num_codes - i);
    rest = join_codes<bits>(rest);
    std::memcpy(packed, &rest, packed_bytes(num_codes - i, bits));
  }
}

template <int bits>
inline void unpack_codes(const std::uint8_t* packed, std::size_t num_codes,
                         std::uint8_t* codes) noexcept {
  std::size_t i = 0;
  for (; i + 8 <= num_codes; i += 8, packed += bits) {
    std::uint64_t eight = 0;
    std::memcpy(&eight, packed, bits);
    eight = split_codes<bits>(eight);
    std::memcpy(codes + i, &eight, 8);
  }
  if (i < num_codes) {
    std::uint64_t rest = 0;
    std::memcpy(&rest, packed, packed_bytes(num_codes - i, bits));
    rest = split_codes<bits>(rest);
    std::memcpy(codes + i, &rest, num_codes - i);
  }
}

// Calls function.template operator()<bits>() for a run-time `bits`. REQUIRES: 2 <= bits <= 8.
template <typename Function>
inline decltype(auto) with_bits(int bits, Function&& function) {
  switch (bits) {
    case 2:
      return function.template operator()<2>();
    case 3:
      return function.template operator()<3>();
    case 4:
      return function.template operator()<4>();
    case 5:
      return function.template operator()<5>();
    case 6:
      return function.template operator()<6>();
    case 7:
      return function.template operator()<7>();
    default:
      return function.template operator()<8>();
  }
}

}  // namespace slimgrad

#endif  // SLIMGRAD_FORMATS_BIT_PACKING_H_
