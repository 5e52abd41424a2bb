// xxHash, all of it inline, compiled once more. A file of its own, because the header can be
// included only once; what it includes comes first, so that it is compiled as everywhere else.
#include "arrays/coding/checksum.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2")
#endif

#define XXH_INLINE_ALL
#define XXH_VECTOR 2            // XXH_AVX2
#define XXH_PREFETCH_DIST 2048  // bytes; more than usual, for payloads in memory
#include <xxhash.h>

namespace slimgrad {

std::uint64_t checksum_avx2(std::span<const std::uint8_t> bytes) noexcept {
  return XXH3_64bits(bytes.data(), bytes.size());
}

Hash128 hash128_avx2(std::span<const std::uint8_t> bytes) noexcept {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {hash.low64, hash.high64};
}

}  // namespace slimgrad

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
