// xxHash, all of it inline, compiled once more. A file of its own, because the header can be
// included only once; what it includes comes first, so that it is compiled as everywhere else.
#include "kernels/checksum_avx2.h"

#include <hwy/base.h>

#if HWY_ARCH_X86
#include <immintrin.h>
#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

HWY_PUSH_ATTRIBUTES("avx2")
#define XXH_INLINE_ALL
#define XXH_VECTOR 2  // XXH_AVX2
#include <xxhash.h>

namespace slimgrad {

std::uint64_t checksum_avx2(std::span<const std::uint8_t> bytes) noexcept {
  return XXH3_64bits(bytes.data(), bytes.size());
}

}  // namespace slimgrad
HWY_POP_ATTRIBUTES
#endif
