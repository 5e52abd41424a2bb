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

Hash128 hash128(std::span<const std::uint8_t> bytes) noexcept {
#if defined(__x86_64__)
  if (kernels::use_avx2()) return hash128_avx2(bytes);
#endif
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {hash.low64, hash.high64};
}

}  // namespace slimgrad
