// Bits in and out of a small byte buffer, the first in the lowest bit of the first byte: for
// tables, not for data. Neither ever leaves its buffer: a reader past the end gives zeros, a writer
// drops, and both say so.
#ifndef SLIMGRAD_ARRAYS_CODING_BIT_IO_H_
#define SLIMGRAD_ARRAYS_CODING_BIT_IO_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace slimgrad {

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

}  // namespace slimgrad

#endif  // SLIMGRAD_ARRAYS_CODING_BIT_IO_H_
