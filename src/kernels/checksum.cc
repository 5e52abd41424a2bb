#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/checksum.cc"
#include <hwy/foreach_target.h>
// After foreach_target, as Highway asks.
#include <hwy/highway.h>

#include "kernels/checksum.h"
#include "kernels/checksum_avx2.h"
#include "kernels/dispatch.h"

#ifndef SLIMGRAD_KERNELS_CHECKSUM_ONCE_
#define SLIMGRAD_KERNELS_CHECKSUM_ONCE_
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace slimgrad::checksums {

// xxHash with what every CPU of the architecture has.
inline std::uint64_t plain(std::span<const std::uint8_t> bytes) noexcept {
  return XXH3_64bits(bytes.data(), bytes.size());
}

}  // namespace slimgrad::checksums
#endif  // SLIMGRAD_KERNELS_CHECKSUM_ONCE_

HWY_BEFORE_NAMESPACE();
namespace slimgrad::checksums::HWY_NAMESPACE {

std::uint64_t best(std::span<const std::uint8_t> bytes) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  return checksum_avx2(bytes);
#else
  return plain(bytes);
#endif
}

}  // namespace slimgrad::checksums::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace slimgrad {
namespace checksums {
HWY_EXPORT(best);
}  // namespace checksums

std::uint64_t checksum(std::span<const std::uint8_t> bytes) noexcept {
  using namespace checksums;
  return kernels::use_scalar() ? plain(bytes) : HWY_DYNAMIC_DISPATCH(best)(bytes);
}

}  // namespace slimgrad
#endif  // HWY_ONCE
