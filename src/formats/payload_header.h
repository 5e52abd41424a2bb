// The header of a payload as bytes and back; docs/format.md draws it. Every header has exactly one
// form: what the parser accepts, the writer would write.
#ifndef SLIMGRAD_FORMATS_PAYLOAD_HEADER_H_
#define SLIMGRAD_FORMATS_PAYLOAD_HEADER_H_

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include <slimgrad/payload_info.h>

namespace slimgrad {

inline constexpr std::array<std::uint8_t, 4> kPayloadMagic = {0x8d, 'S', 'G', 'P'};
// Magic bytes of a file with several payloads, which cannot be read as one.
inline constexpr std::array<std::uint8_t, 4> kContainerMagic = {0x8d, 'S', 'G', 'C'};
inline constexpr std::uint8_t kPayloadVersion = 1;
inline constexpr std::size_t kMaxShapeLengths = 32;
inline constexpr std::uint64_t kMaxShapeLength = (std::uint64_t{1} << 63) - 1;
inline constexpr std::uint8_t kFortranFlag = 0x80;  // beside the number of dimensions
inline constexpr float kLargestRate = 16;           // bits a value
inline constexpr int kMinBlockLog2 = 12, kMaxBlockLog2 = 20;
inline constexpr std::size_t kChecksumBytes = 8;
inline constexpr std::uint32_t kLeastBlockBytes = 2;  // how it is coded, and a symbol
// Magic, version, kind, type, number of dimensions; checksum.
inline constexpr std::size_t kMinPayloadBytes = 8 + kChecksumBytes;

// A tensor of more bytes is refused: sums and products of such sizes stay below 2^64.
inline constexpr std::uint64_t kMaxTensorBytes = std::uint64_t{1} << 60;

// The header with its block index, up to the first block.
std::vector<std::uint8_t> write_payload_header(const PayloadInfo& info);

// Reads the header and the index of a payload whose checksum has been checked, and makes sure that
// header, blocks and checksum fill the payload exactly. `header_bytes` is where the first block
// begins. Throws PayloadError; allocates in proportion to the payload.
PayloadInfo parse_payload_header(std::span<const std::uint8_t> payload, std::size_t& header_bytes);

// Throws PayloadError for what cannot be a payload of this version, by its first bytes and size.
void check_payload_start(std::span<const std::uint8_t> payload);

}  // namespace slimgrad

#endif  // SLIMGRAD_FORMATS_PAYLOAD_HEADER_H_
