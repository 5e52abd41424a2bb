#include "codecs/checksum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace slimgrad {

std::uint64_t checksum(std::span<const std::uint8_t> bytes) noexcept {
  return XXH3_64bits(bytes.data(), bytes.size());
}

}  // namespace slimgrad
