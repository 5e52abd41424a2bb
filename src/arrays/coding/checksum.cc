#include "arrays/coding/checksum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "kernels/dispatch.h"

namespace slimgrad {

std::uint64_t checksum(std::span<const std::uint8_t> bytes) noexcept {
#if defined(__x86_64__)
  if (kernels::use_avx2()) return checksum_avx2(bytes);
#endif
  return XXH3_64bits(bytes.data(), bytes.size());
}

}  // namespace slimgrad
