// Symbols too rare for a place in a table: the coder sees one symbol instead of all of them, and
// their values travel beside it as they are; their places, too, if they are few, or else the
// decoder finds them by that symbol, the escape.
//
// All but put_placed look at every symbol, but touch only the groups that hold a rare one, which
// are few: some 40 GB/s. noexcept, no allocation, any thread; the same on every CPU.
#ifndef SLIMGRAD_KERNELS_CODING_ESCAPES_H_
#define SLIMGRAD_KERNELS_CODING_ESCAPES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace slimgrad::kernels {

// A set of bytes, by nibbles: bit h % 8 of rows[h / 8][l] says whether 16 h + l belongs to it. Two
// byte shuffles then look up a vector of bytes.
struct ByteSet {
  alignas(16) std::array<std::array<std::uint8_t, 16>, 2> rows = {};

  void insert(std::uint8_t byte) noexcept {
    std::uint8_t& row = rows[byte >> 7][byte & 15];
    row = static_cast<std::uint8_t>(row | 1u << (byte >> 4 & 7));
  }
  bool contains(std::uint8_t byte) const noexcept {
    return rows[byte >> 7][byte & 15] >> (byte >> 4 & 7) & 1;
  }
};

// Copies the symbols that belong to `rare` to `values`, in order, and returns how many.
// REQUIRES: values has room for them.
std::size_t copy_escapes(std::span<const std::uint8_t> symbols, const ByteSet& rare,
                         std::uint8_t* values) noexcept;

// Puts the values, in order, where `symbols` has `escape`. False if there are more or fewer places
// than values; then the symbols are unspecified.
bool put_escapes(std::span<std::uint8_t> symbols, std::uint8_t escape,
                 std::span<const std::uint8_t> values) noexcept;

// Places, as the number of symbols in between; two bytes, the lower first.
inline constexpr std::size_t kGapBytes = 2;
inline constexpr std::size_t kMostBetween = 65535;

// Copies the symbols that belong to `rare` with their places, and returns how many. Where more than
// kMostBetween lie in between, a symbol that is not rare is copied, too.
// REQUIRES: values has room for most_placed(symbols.size()) bytes, gaps for twice as many.
constexpr std::size_t most_placed(std::size_t num_symbols) {
  return num_symbols + num_symbols / kMostBetween;
}
std::size_t copy_placed(std::span<const std::uint8_t> symbols, const ByteSet& rare,
                        std::uint8_t* values, std::uint8_t* gaps) noexcept;

// Puts the values in their places. False if one is behind the end.
// REQUIRES: gaps.size() == kGapBytes * values.size().
bool put_placed(std::span<std::uint8_t> symbols, std::span<const std::uint8_t> values,
                std::span<const std::uint8_t> gaps) noexcept;

}  // namespace slimgrad::kernels

#endif  // SLIMGRAD_KERNELS_CODING_ESCAPES_H_
