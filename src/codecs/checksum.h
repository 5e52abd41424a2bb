// The checksum of payloads.
#ifndef SLIMGRAD_CODECS_CHECKSUM_H_
#define SLIMGRAD_CODECS_CHECKSUM_H_

#include <cstdint>
#include <span>

namespace slimgrad {

// XXH3, 64 bits, seed 0.
std::uint64_t checksum(std::span<const std::uint8_t> bytes) noexcept;

}  // namespace slimgrad

#endif  // SLIMGRAD_CODECS_CHECKSUM_H_
