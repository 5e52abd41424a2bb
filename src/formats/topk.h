// The k largest magnitudes of every group of values as bits: what readers and writers share. The
// bytes are in docs/format.md; arrays/coding/topk_block.cc writes and reads them.
//
// Places. If the k largest of n lie anywhere, the gaps between them are nearly geometric with
// p = k / n. A Golomb code for that needs no table: with k = 64 of n = 4096 it takes 7.45 bits a
// place where log2 C(n, k) / k is 7.37 and a geometric law has 7.43. A coder with counted tables
// would save less than its tables take in blocks of 2^18 values.
#ifndef SLIMGRAD_FORMATS_TOPK_H_
#define SLIMGRAD_FORMATS_TOPK_H_

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace slimgrad {

inline constexpr int kMinTopkOf = 16, kMaxTopkOf = 4096;  // powers of two; a block holds whole ones
inline constexpr int kMinTopkBits = 1, kMaxTopkBits = 4;

constexpr bool is_topk_rule(std::int64_t k, std::int64_t of, int bits) {
  return of >= kMinTopkOf && of <= kMaxTopkOf &&
         std::has_single_bit(static_cast<std::uint64_t>(of)) && k >= 1 && k <= of &&
         bits >= kMinTopkBits && bits <= kMaxTopkBits;
}

// How many of a group of `size` values are kept: k, and of the shorter last group its share.
constexpr std::size_t topk_kept(int k, int of, std::size_t size) {
  return (static_cast<std::size_t>(k) * size + static_cast<std::size_t>(of) - 1) /
         static_cast<std::size_t>(of);
}

// Gap g, the values between two that are kept, is floor(g / m) zeros, a one, and the remainder in
// truncated binary: `width` - 1 bits of those below `cut`, `width` bits of r + cut for the others.
struct GolombCode {
  static constexpr std::uint32_t kLargest = 1u << 15;

  std::uint32_t m;
  int width;
  std::uint32_t cut;

  // REQUIRES: 1 <= m <= kLargest.
  explicit constexpr GolombCode(std::uint32_t m)
      : m(m), width(std::bit_width(m - 1)), cut((1u << width) - m) {}

  // The best m for `count` gaps, nearly: ln 2 over the share of values that are kept.
  static constexpr std::uint32_t best(std::uint64_t count, std::uint64_t sum_of_gaps) {
    const std::uint64_t m = (45426 * (count + sum_of_gaps) + 32768 * count) / (65536 * count);
    return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(m, 1, kLargest));
  }
};

}  // namespace slimgrad

#endif  // SLIMGRAD_FORMATS_TOPK_H_
