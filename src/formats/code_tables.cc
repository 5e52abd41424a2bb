#include "formats/code_tables.h"

#include <algorithm>
#include <bit>

namespace slimgrad {
namespace {

struct Range {
  int first = 256, last = -1;
};

template <class Table>
Range range_in_use(const Table& table) {
  Range range;
  for (int s = 0; s < 256; ++s)
    if (table[s] != 0) range = {std::min(range.first, s), s};
  return range;
}

void put_step(int step, BitWriter& out) {
  const int zigzag = step > 0 ? 2 * step : -2 * step - (step < 0 ? 1 : 0);
  for (int i = 0; i < zigzag; ++i) out.put(0, 1);
  out.put(1, 1);
}

bool get_step(BitReader& in, int& step) {
  for (int zigzag = 0; zigzag <= 32; ++zigzag)
    if (in.get(1) == 1) {
      step = zigzag % 2 == 0 ? zigzag / 2 : -(zigzag + 1) / 2;
      return true;
    }
  return false;
}

}  // namespace

bool is_valid(const RansFrequencies& frequencies) noexcept {
  if (frequencies.escape > 255) return false;
  if (frequencies.has_escape() && frequencies.frequency[frequencies.escape] == 0) return false;
  std::uint32_t sum = 0;
  for (const std::uint32_t frequency : frequencies.frequency) {
    if (frequency > kMaxRansFrequency) return false;
    sum += frequency;
  }
  return sum == kRansTotal;
}

bool is_valid(const HuffmanLengths& lengths) noexcept {
  std::uint32_t kraft = 0;
  for (const int length : lengths) {
    if (length > kMaxHuffmanBits) return false;
    if (length > 0) kraft += 1u << (kMaxHuffmanBits - length);
  }
  return kraft == 1u << kMaxHuffmanBits;
}

void write_frequencies(const RansFrequencies& frequencies, BitWriter& out) {
  const Range range = range_in_use(frequencies.frequency);
  out.put(frequencies.has_escape() ? 1 : 0, 1);
  if (frequencies.has_escape()) out.put(static_cast<std::uint32_t>(frequencies.escape), 8);
  out.put(static_cast<std::uint32_t>(range.first), 8);
  out.put(static_cast<std::uint32_t>(range.last), 8);
  int width = 1;
  for (int s = range.first; s <= range.last; ++s) {
    const std::uint32_t f = frequencies.frequency[s];
    put_step(std::bit_width(f) - width, out);
    width = std::bit_width(f);
    if (width > 1) out.put(f, width - 1);
  }
}

bool read_frequencies(BitReader& in, RansFrequencies& frequencies) {
  frequencies.escape = in.get(1) == 1 ? static_cast<int>(in.get(8)) : -1;
  const std::uint32_t first = in.get(8), last = in.get(8);
  frequencies.frequency = {};
  int width = 1, step;
  for (std::uint32_t s = first; s <= last; ++s) {
    if (!get_step(in, step)) return false;
    width += step;
    if (width < 0 || width > 12) return false;
    std::uint32_t f = width == 0 ? 0 : 1u << (width - 1);
    if (width > 1) f |= in.get(width - 1);
    frequencies.frequency[s] = static_cast<std::uint16_t>(f);
  }
  return !in.overflowed() && in.ends_in_zeros() && is_valid(frequencies);
}

void write_lengths(const HuffmanLengths& lengths, BitWriter& out) {
  const Range range = range_in_use(lengths);
  out.put(static_cast<std::uint32_t>(range.first), 8);
  out.put(static_cast<std::uint32_t>(range.last), 8);
  int length = kMaxHuffmanBits;
  for (int s = range.first; s <= range.last; ++s) {
    put_step(lengths[s] - length, out);
    length = lengths[s];
  }
}

bool read_lengths(BitReader& in, HuffmanLengths& lengths) {
  const std::uint32_t first = in.get(8), last = in.get(8);
  lengths = {};
  int length = kMaxHuffmanBits, step;
  for (std::uint32_t s = first; s <= last; ++s) {
    if (!get_step(in, step)) return false;
    length += step;
    if (length < 0 || length > kMaxHuffmanBits) return false;
    lengths[s] = static_cast<std::uint8_t>(length);
  }
  return !in.overflowed() && in.ends_in_zeros() && is_valid(lengths);
}

}  // namespace slimgrad
