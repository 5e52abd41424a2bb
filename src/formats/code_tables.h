// The tables of the two entropy coders, which give each of 256 symbols its code, and their bytes in
// a block. math/coding computes them, kernels/coding codes with them.
#ifndef SLIMGRAD_FORMATS_CODE_TABLES_H_
#define SLIMGRAD_FORMATS_CODE_TABLES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace slimgrad {

// ---- rANS --------------------------------------------------------------------------------------

inline constexpr int kRansBits = 12;  // n of kernels/coding/rans.h
inline constexpr std::uint32_t kRansTotal = 1u << kRansBits;
inline constexpr std::uint32_t kMaxRansFrequency = kRansTotal - 1;

// Frequencies of the 256 symbols, adding up to 4096, none above 4095, so that a slot of the decode
// table fits in 32 bits. That excludes only data of a single symbol, which needs no coder.
struct RansFrequencies {
  std::array<std::uint16_t, 256> frequency = {};
  int escape = -1;  // none, or a symbol with a frequency, which stands for those without

  bool has_escape() const { return escape >= 0; }
  // Whether the symbol's value travels beside the stream.
  bool escapes(int symbol) const {
    return has_escape() && (symbol == escape || frequency[static_cast<std::size_t>(symbol)] == 0);
  }
};

// Whether the frequencies keep the promises above.
bool is_valid(const RansFrequencies& frequencies) noexcept;

// ---- Huffman -----------------------------------------------------------------------------------

// Five words of 11 bits fit in what one 64-bit load can supply (64 - 7 - 1 bits).
inline constexpr int kMaxHuffmanBits = 11;

// The number of bits of each symbol's code word; 0 where the symbol does not occur.
using HuffmanLengths = std::array<std::uint8_t, 256>;

// Whether the lengths are those of a complete prefix code (Kraft's sum is one) within the limit.
bool is_valid(const HuffmanLengths& lengths) noexcept;

// ---- bytes -------------------------------------------------------------------------------------

// Bits in and out of a small byte buffer, the first in the lowest bit of the first byte: for
// tables, not for data. Neither ever leaves its buffer: a reader past the end gives zeros, a writer
// drops, and both say so.
class BitWriter {
 public:
  explicit BitWriter(std::span<std::uint8_t> out) : out_(out) {}

  void put(std::uint32_t value, int num_bits) {
    for (int i = 0; i < num_bits; ++i, ++used_) {
      if (used_ / 8 >= out_.size()) continue;
      if (used_ % 8 == 0) out_[used_ / 8] = 0;
      out_[used_ / 8] =
          static_cast<std::uint8_t>(out_[used_ / 8] | (value >> i & 1) << (used_ % 8));
    }
  }
  std::size_t num_bytes() const { return (used_ + 7) / 8; }
  bool overflowed() const { return num_bytes() > out_.size(); }

 private:
  std::span<std::uint8_t> out_;
  std::size_t used_ = 0;
};

class BitReader {
 public:
  explicit BitReader(std::span<const std::uint8_t> in) : in_(in) {}

  std::uint32_t get(int num_bits) {
    std::uint32_t value = 0;
    for (int i = 0; i < num_bits; ++i, ++used_)
      if (used_ / 8 < in_.size())
        value |= static_cast<std::uint32_t>(in_[used_ / 8] >> (used_ % 8) & 1) << i;
    return value;
  }
  std::size_t num_bytes() const { return (used_ + 7) / 8; }
  bool overflowed() const { return num_bytes() > in_.size(); }
  // Whether the bits after the last one read, up to the end of its byte, are zero.
  bool ends_in_zeros() const {
    return overflowed() || used_ % 8 == 0 || in_[used_ / 8] >> (used_ % 8) == 0;
  }

 private:
  std::span<const std::uint8_t> in_;
  std::size_t used_ = 0;
};

// The table in few bits: whether there is an escape, 1 bit, and which, 8 bits; the first and last
// symbol with a frequency, 8 bits each; then of each from the first to the last the bit width of
// its frequency as a step from the one before (zigzag in unary: 1, 01, 001 for 0, -1, +1, ...), and
// the bits below the highest. Neighbouring codes of a gradient have like frequencies, so a step
// costs between one and two bits. Reading returns false where there is no valid table.
void write_frequencies(const RansFrequencies& frequencies, BitWriter& out);
bool read_frequencies(BitReader& in, RansFrequencies& frequencies);

// Code lengths in the same way, without the bits below.
void write_lengths(const HuffmanLengths& lengths, BitWriter& out);
bool read_lengths(BitReader& in, HuffmanLengths& lengths);

// ---- decoding ----------------------------------------------------------------------------------

// How the decoding of untrusted bytes ended. Decoders return one of these and never throw: a
// damaged byte is an ordinary event for them. The layer that talks to users turns it into a typed
// error.
enum class DecodeStatus {
  kOk,
  kTruncated,      // the bytes end before the symbols do
  kTrailingBytes,  // the symbols end before the bytes do
  kBadTable,       // a frequency or code-length table that no encoder writes
  kBadMethod,      // a method or table kind that this version does not know
  kBadFinalState,  // all was read, but the coder did not come back to where encoding began
  kNoSharedTable,  // the bytes refer to a table that the caller did not give
};

}  // namespace slimgrad

#endif  // SLIMGRAD_FORMATS_CODE_TABLES_H_
