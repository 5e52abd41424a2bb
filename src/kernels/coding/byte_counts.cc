#include "kernels/coding/byte_counts.h"

#include <cstring>

namespace slimgrad::kernels {

ByteCounts count_bytes(std::span<const std::uint8_t> bytes) noexcept {
  // Equal neighbours would wait for each other's increment; four tables keep them apart. About one
  // cycle a byte: the stores are the limit.
  std::uint32_t tables[4][256] = {};
  std::size_t i = 0;
  for (; i + 16 <= bytes.size(); i += 16) {
    std::uint32_t words[4];
    std::memcpy(words, bytes.data() + i, 16);
    for (const std::uint32_t word : words) {
      ++tables[0][word & 0xff];
      ++tables[1][word >> 8 & 0xff];
      ++tables[2][word >> 16 & 0xff];
      ++tables[3][word >> 24];
    }
  }
  for (; i < bytes.size(); ++i) ++tables[0][bytes[i]];
  ByteCounts counts = {};
  for (const auto& table : tables)
    for (int s = 0; s < 256; ++s) counts[s] += table[s];
  return counts;
}

}  // namespace slimgrad::kernels
