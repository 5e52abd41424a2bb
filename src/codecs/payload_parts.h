// The parts of a block of a payload: symbol blocks one after the other, each but the last with its
// size (uint32) in front; the last takes what is left.
#ifndef SLIMGRAD_CODECS_PAYLOAD_PARTS_H_
#define SLIMGRAD_CODECS_PAYLOAD_PARTS_H_

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "codecs/symbol_block.h"
#include "codecs/symbol_block_layout.h"
#include "kernels/byte_planes.h"

namespace slimgrad {

enum class Place { kInside, kLast };

inline void append_part(std::span<const std::uint8_t> part, Place place,
                        std::vector<std::uint8_t>& block) {
  if (place == Place::kInside) {
    block.resize(block.size() + 4);
    store_u32(block.data() + block.size() - 4, part.size());
  }
  block.insert(block.end(), part.begin(), part.end());
}

// Takes the next part off the front of `block`; false if its size is more than there is.
inline bool take_part(std::span<const std::uint8_t>& block, Place place,
                      std::span<const std::uint8_t>& part) {
  std::size_t size = block.size();
  if (place == Place::kInside) {
    if (block.size() < 4) return false;
    size = load_u32(block.data());
    block = block.subspan(4);
  }
  if (size > block.size()) return false;
  part = block.first(size);
  block = block.subspan(size);
  return true;
}

// Numbers without loss: one part for each plane of their bytes (kernels/byte_planes.h), coded if
// that pays. They are the last parts of the block.
class PlaneEncoder {
 public:
  void append(BlockEncoder& encoder, const void* values, std::size_t num_values, std::size_t width,
              std::vector<std::uint8_t>& block);

 private:
  std::vector<std::uint8_t> planes_;
};

class PlaneDecoder {
 public:
  // `block` is what is left of the block, and must be used up.
  DecodeStatus decode(BlockDecoder& decoder, std::span<const std::uint8_t> block,
                      std::size_t num_values, std::size_t width, void* values);

 private:
  std::vector<std::uint8_t> planes_;
};

}  // namespace slimgrad

#endif  // SLIMGRAD_CODECS_PAYLOAD_PARTS_H_
