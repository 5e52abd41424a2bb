// Headers as bytes: numbers little-endian, lengths as varints, and errors for what is not there.
#ifndef SLIMGRAD_FORMATS_HEADER_BYTES_H_
#define SLIMGRAD_FORMATS_HEADER_BYTES_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <slimgrad/error.h>

namespace slimgrad::header_bytes {

[[noreturn]] inline void fail(PayloadErrorCode code, const std::string& text) {
  throw PayloadError(code, "[decode] " + text);
}
[[noreturn]] inline void bad_header(const std::string& text) {
  fail(PayloadErrorCode::kBadHeader, "damaged header: " + text);
}

class Writer {
 public:
  void byte(std::uint64_t value) { bytes_.push_back(static_cast<std::uint8_t>(value)); }
  void fixed(std::uint64_t value, int num_bytes) {
    for (int i = 0; i < num_bytes; ++i) byte(value >> (8 * i) & 0xff);
  }
  void number(float value) { fixed(std::bit_cast<std::uint32_t>(value), 4); }
  // Seven bits a byte, the lowest first; the top bit says that more follow.
  void varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) byte(value | 0x80);
    byte(value);
  }
  std::vector<std::uint8_t> take() { return std::move(bytes_); }

 private:
  std::vector<std::uint8_t> bytes_;
};

// Never reads past the end: what is missing is an error.
class Reader {
 public:
  explicit Reader(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

  std::uint64_t fixed(int num_bytes) {
    if (left() < static_cast<std::size_t>(num_bytes))
      fail(PayloadErrorCode::kTruncated, "the payload ends within its header");
    std::uint64_t value = 0;
    for (int i = 0; i < num_bytes; ++i) value |= std::uint64_t{bytes_[used_++]} << (8 * i);
    return value;
  }
  std::uint8_t byte() { return static_cast<std::uint8_t>(fixed(1)); }
  float number() { return std::bit_cast<float>(static_cast<std::uint32_t>(fixed(4))); }
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 63; shift += 7) {
      const std::uint8_t next = byte();
      value |= std::uint64_t{next & 0x7fu} << shift;
      if (next >= 0x80) continue;
      if (next == 0 && shift > 0) bad_header("a length is not in its shortest form");
      return value;
    }
    bad_header("a length of 2^63 or more");
  }
  // A value of an enumeration whose last one is given.
  template <typename Enum>
  Enum choice(Enum last, const char* what) {
    const std::uint8_t value = byte();
    if (value > static_cast<std::uint8_t>(last))
      bad_header(std::string("unknown ") + what + ' ' + std::to_string(value));
    return static_cast<Enum>(value);
  }
  int within(int low, int high, const char* what) {
    const int value = byte();
    if (value < low || value > high)
      bad_header(std::to_string(value) + ' ' + what + ", expected " + std::to_string(low) + " to " +
                 std::to_string(high));
    return value;
  }
  // What is left, and going on behind the first of it.
  std::span<const std::uint8_t> rest() const { return bytes_.subspan(used_); }
  void skip(std::size_t num_bytes) {
    if (num_bytes > left())
      fail(PayloadErrorCode::kTruncated, "the payload ends within its header");
    used_ += num_bytes;
  }
  std::size_t used() const { return used_; }
  std::size_t left() const { return bytes_.size() - used_; }

 private:
  std::span<const std::uint8_t> bytes_;
  std::size_t used_ = 0;
};

}  // namespace slimgrad::header_bytes

#endif  // SLIMGRAD_FORMATS_HEADER_BYTES_H_
