#include <algorithm>

#include "kernels/coding/huffman.h"

namespace slimgrad::kernels {
namespace {

struct CanonicalCode {
  std::array<std::uint32_t, 256> word = {};  // the first bit lowest
};

CanonicalCode canonical_code(const HuffmanLengths& lengths) noexcept {
  CanonicalCode code;
  std::uint32_t next = 0;
  for (int length = 1; length <= kMaxHuffmanBits; ++length, next <<= 1)
    for (int s = 0; s < 256; ++s) {
      if (lengths[s] != length) continue;
      std::uint32_t reversed = 0;
      for (int bit = 0; bit < length; ++bit) reversed |= (next >> bit & 1) << (length - 1 - bit);
      code.word[s] = reversed;
      ++next;
    }
  return code;
}

}  // namespace

void build_encode_table(const HuffmanLengths& lengths, HuffmanEncodeTable& table) noexcept {
  const CanonicalCode code = canonical_code(lengths);
  for (int s = 0; s < 256; ++s)
    table.entries[s] = std::uint64_t{code.word[s]} << ((64 - lengths[s]) % 64) | lengths[s];
}

void build_decode_table(const HuffmanLengths& lengths, HuffmanDecodeTable& table) noexcept {
  const CanonicalCode code = canonical_code(lengths);
  for (std::uint32_t s = 0; s < 256; ++s) {
    if (lengths[s] == 0) continue;
    const auto entry = static_cast<std::uint16_t>(lengths[s] | s << 8);
    for (std::uint32_t i = code.word[s]; i < table.entries.size(); i += 1u << lengths[s])
      table.entries[i] = entry;
  }
}

}  // namespace slimgrad::kernels
