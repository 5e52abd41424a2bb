// What the two sides of arrays/coding/symbol_block.h share.
#ifndef SLIMGRAD_ARRAYS_CODING_SYMBOL_BLOCK_LAYOUT_H_
#define SLIMGRAD_ARRAYS_CODING_SYMBOL_BLOCK_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace slimgrad {

enum class BlockMethod : std::uint8_t {
  kRaw,
  kConstant,
  kRans,
  kHuffman,
  kSparse,
  kPacked,
};
// Flags beside the method.
inline constexpr std::uint8_t kSharedFlag = 0x10;  // kRans, kHuffman: no table here, the shared one
inline constexpr std::uint8_t kPairedFlag = 0x20;  // kRans: two streams
inline constexpr std::uint8_t kPlacedFlag = 0x40;  // kRans: rare symbols and their places

// Room for the method, a table (at most 25 + 256 * (25 + 11) bits) and two sizes.
inline constexpr std::size_t kMaxBlockHeader = 1280;

inline void store_u32(std::uint8_t* bytes, std::size_t value) {
  const auto small = static_cast<std::uint32_t>(value);
  std::memcpy(bytes, &small, 4);
}

inline std::size_t load_u32(const std::uint8_t* bytes) {
  std::uint32_t value;
  std::memcpy(&value, bytes, 4);
  return value;
}

}  // namespace slimgrad

#endif  // SLIMGRAD_ARRAYS_CODING_SYMBOL_BLOCK_LAYOUT_H_
