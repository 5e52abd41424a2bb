// Bools as bits, eight at a time within a word of 64 bits.
#include <algorithm>
#include <bit>
#include <cstring>

#include "arrays/saved/saved.h"

namespace slimgrad {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::size_t kTaskBytes = 1 << 13;  // of bits, a task
constexpr std::uint64_t kOnes = 0x0101010101010101;

std::uint8_t bits_of(std::uint64_t bytes) {
  bytes |= bytes >> 4;  // By 7 together: nothing of the byte above arrives at bit 0.
  bytes |= bytes >> 2;
  bytes |= bytes >> 1;
  // Bit 0 of byte i goes to bit i of the highest byte, and no two products to the same bit.
  return static_cast<std::uint8_t>((bytes & kOnes) * 0x0102040810204080 >> 56);
}

std::uint64_t bytes_of(std::uint8_t bits) {
  const std::uint64_t single = bits * kOnes & 0x8040201008040201;  // byte i has bit i alone
  return (single + 0x7f7f7f7f7f7f7f7f) >> 7 & kOnes;
}

template <typename Task>
void for_bytes(std::size_t num_values, const Parallel& parallel, const Task& task) {
  const std::size_t num_bytes = bool_bytes(num_values);
  parallel(static_cast<std::int64_t>((num_bytes + kTaskBytes - 1) / kTaskBytes),
           [&](std::int64_t index) {
             const std::size_t first = static_cast<std::size_t>(index) * kTaskBytes;
             for (std::size_t i = first; i < std::min(first + kTaskBytes, num_bytes); ++i)
               task(i, std::min<std::size_t>(8, num_values - 8 * i));
           });
}

}  // namespace

void pack_bools(std::span<const std::uint8_t> values, const Parallel& parallel,
                std::span<std::uint8_t> bits) {
  for_bytes(values.size(), parallel, [&](std::size_t i, std::size_t count) {
    std::uint64_t bytes = 0;
    if (count == 8) {
      std::memcpy(&bytes, values.data() + 8 * i, 8);
    } else {
      std::memcpy(&bytes, values.data() + 8 * i, count);
    }
    bits[i] = bits_of(bytes);
  });
}

void unpack_bools(std::span<const std::uint8_t> bits, const Parallel& parallel,
                  std::span<std::uint8_t> values) {
  for_bytes(values.size(), parallel, [&](std::size_t i, std::size_t count) {
    const std::uint64_t bytes = bytes_of(bits[i]);
    if (count == 8) {
      std::memcpy(values.data() + 8 * i, &bytes, 8);
    } else {
      std::memcpy(values.data() + 8 * i, &bytes, count);
    }
  });
}

}  // namespace slimgrad
