// How often each byte value occurs.
#ifndef SLIMGRAD_KERNELS_CODING_BYTE_COUNTS_H_
#define SLIMGRAD_KERNELS_CODING_BYTE_COUNTS_H_

#include <array>
#include <cstdint>
#include <span>

namespace slimgrad::kernels {

using ByteCounts = std::array<std::uint32_t, 256>;

// REQUIRES: fewer than 2^32 bytes.
ByteCounts count_bytes(std::span<const std::uint8_t> bytes) noexcept;

}  // namespace slimgrad::kernels

#endif  // SLIMGRAD_KERNELS_CODING_BYTE_COUNTS_H_
