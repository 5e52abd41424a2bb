// The layout of few-bit codes: 1 to 4 bits an element, as an activation keeps them for backward.
//
// Elements are taken in the order in which they lie in memory and cut into blocks of 512, and a
// block is seen as 32 rows of 16 columns: element e of a block is in row e / 16, column e % 16. A
// column's 32 codes are 32 * bits bits, which is `bits` words of 32 bits. The words of a block lie
// word by word, 16 columns each, so that a vector load brings the same word of neighbouring
// columns:
//
//     block   |w0 c0|w0 c1| ... |w0 c15|w1 c0| ... |w1 c15| ...      64 * bits bytes, little endian
//
// Inside a word the codes of consecutive rows follow each other from the lowest bit up. So packing
// is "shift left and or", unpacking "shift right and mask", one row of 8 or 16 lanes at a time, and
// the codes of lanes never cross. With 1, 2 and 4 bits a word holds 32, 16 and 8 rows:
//
//     1 bit    w0: rows 0..31
//     2 bits   w0: rows 0..15    w1: rows 16..31
//     4 bits   w0: rows 0..7     w1: rows 8..15     w2: rows 16..23    w3: rows 24..31
//
// With 3 bits a word holds ten rows, and the two bits left on top of its three words together hold
// the last two rows:
//
//     3 bits   w0: rows 0..9     w1: rows 10..19    w2: rows 20..29
//              top(w2) << 4 | top(w1) << 2 | top(w0) = row 31 << 3 | row 30,   top(w) = w >> 30
//
// The last block is as long as all others; the codes behind the end of the array are the highest.
// An array of n elements takes ceil(n / 512) * 64 * bits bytes, and an empty one none.
#ifndef SLIMGRAD_FORMATS_FEWBIT_H_
#define SLIMGRAD_FORMATS_FEWBIT_H_

#include <cstddef>
#include <cstdint>

namespace slimgrad::fewbit {

inline constexpr int kMaxBits = 4;
inline constexpr std::size_t kNumColumns = 16;
inline constexpr std::size_t kNumRows = 32;
inline constexpr std::size_t kBlockValues = kNumColumns * kNumRows;

constexpr std::size_t block_words(int bits) { return kNumColumns * static_cast<std::size_t>(bits); }
constexpr std::size_t block_bytes(int bits) { return 4 * block_words(bits); }

constexpr std::size_t num_blocks(std::size_t num_values) {
  return num_values / kBlockValues + (num_values % kBlockValues != 0);
}

constexpr std::size_t packed_bytes(std::size_t num_values, int bits) {
  return num_blocks(num_values) * block_bytes(bits);
}

// Rows that lie whole inside one word: 32, 16, 10, 8.
constexpr std::size_t rows_per_word(int bits) { return 32 / static_cast<std::size_t>(bits); }

// One code of a block, read from its words: the drawing above as a function. The kernels read and
// write whole rows; this and set_code() are what they are tested against.
// REQUIRES: row < kNumRows, column < kNumColumns, 1 <= bits <= kMaxBits.
constexpr std::uint32_t code_at(const std::uint32_t* block, std::size_t row, std::size_t column,
                                int bits) {
  const std::uint32_t mask = (1u << bits) - 1;
  const auto word = [&](std::size_t i) { return block[i * kNumColumns + column]; };
  if (bits == 3 && row >= 30) {
    const std::uint32_t tops = word(2) >> 30 << 4 | word(1) >> 30 << 2 | word(0) >> 30;
    return tops >> 3 * (row - 30) & mask;
  }
  const std::size_t rows = rows_per_word(bits);
  return word(row / rows) >> static_cast<std::size_t>(bits) * (row % rows) & mask;
}

// Puts a code where code_at() finds it. REQUIRES: as above, and its bits are zero so far.
constexpr void set_code(std::uint32_t* block, std::size_t row, std::size_t column, int bits,
                        std::uint32_t code) {
  std::uint32_t* const words = block + column;
  if (bits == 3 && row >= 30) {
    const std::uint32_t tops = code << 3 * (row - 30);
    for (std::size_t w = 0; w < 3; ++w) words[w * kNumColumns] |= (tops >> 2 * w & 3u) << 30;
    return;
  }
  const std::size_t rows = rows_per_word(bits);
  words[row / rows * kNumColumns] |= code << static_cast<std::size_t>(bits) * (row % rows);
}

static_assert(packed_bytes(0, 3) == 0 && packed_bytes(1, 3) == 192 && packed_bytes(512, 3) == 192);
static_assert(packed_bytes(513, 1) == 128);
static_assert(packed_bytes(std::size_t{1} << 33, 4) == std::size_t{1} << 32);

}  // namespace slimgrad::fewbit

#endif  // SLIMGRAD_FORMATS_FEWBIT_H_
