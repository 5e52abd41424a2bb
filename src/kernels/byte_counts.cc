#include "kernels/byte_counts.h"

#include <cstring>

namespace slimgrad {

ByteCounts count_bytes(std::span<const std::uint8_t> bytes) noexcept {
  // Equal neighbours would wait for each other's increment; eight tables keep them apart.
  std::uint32_t tables[8][256] = {};
  std::size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    std::uint64_t word;
    std::memcpy(&word, bytes.data() + i, 8);
    for (int k = 0; k < 8; ++k) ++tables[k][word >> (8 * k) & 0xff];
  }
  for (; i < bytes.size(); ++i) ++tables[0][bytes[i]];
  ByteCounts counts = {};
  for (const auto& table : tables)
    for (int s = 0; s < 256; ++s) counts[s] += table[s];
  return counts;
}

}  // namespace slimgrad
