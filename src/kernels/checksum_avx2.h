// kernels/checksum.h for CPUs that have AVX2.
#ifndef SLIMGRAD_KERNELS_CHECKSUM_AVX2_H_
#define SLIMGRAD_KERNELS_CHECKSUM_AVX2_H_

#include <cstdint>
#include <span>

namespace slimgrad {

// REQUIRES: the CPU has AVX2.
std::uint64_t checksum_avx2(std::span<const std::uint8_t> bytes) noexcept;

}  // namespace slimgrad

#endif  // SLIMGRAD_KERNELS_CHECKSUM_AVX2_H_
