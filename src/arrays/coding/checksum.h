// The checksum of payloads, and the hash that deltas know their base and result by.
#ifndef SLIMGRAD_ARRAYS_CODING_CHECKSUM_H_
#define SLIMGRAD_ARRAYS_CODING_CHECKSUM_H_

#include <cstdint>
#include <span>

#include <slimgrad/hash128.h>

namespace slimgrad {

// XXH3, 64 bits, seed 0. The same on every CPU; with AVX2 it keeps up with the caches, with the
// instructions that every x86-64 has only with memory.
std::uint64_t checksum(std::span<const std::uint8_t> bytes) noexcept;
// XXH3, 128 bits, seed 0.
Hash128 hash128(std::span<const std::uint8_t> bytes) noexcept;

#if defined(__x86_64__)
// REQUIRES: the CPU has AVX2.
std::uint64_t checksum_avx2(std::span<const std::uint8_t> bytes) noexcept;
Hash128 hash128_avx2(std::span<const std::uint8_t> bytes) noexcept;
#endif

}  // namespace slimgrad

#endif  // SLIMGRAD_ARRAYS_CODING_CHECKSUM_H_
