// The parts of a block of a payload: symbol blocks one after the other, each but the last with its
// size (uint32) in front; the last takes what is left.
#ifndef SLIMGRAD_ARRAYS_CODING_PAYLOAD_PARTS_H_
#define SLIMGRAD_ARRAYS_CODING_PAYLOAD_PARTS_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "arrays/coding/symbol_block.h"
#include "arrays/coding/symbol_block_layout.h"
#include "base/scratch.h"
#include "kernels/coding/byte_planes.h"

namespace slimgrad {

enum class Place { kInside, kLast };

// Writes a part at `next`, which moves on. REQUIRES: room for it.
inline void put_part(std::span<const std::uint8_t> part, Place place, std::uint8_t*& next) {
  if (place == Place::kInside) {
    store_u32(next, part.size());
    next += 4;
  }
  next = std::copy(part.begin(), part.end(), next);
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

// Numbers without loss: one part for each plane of their bytes (kernels/coding/byte_planes.h),
// coded if that pays. They are the last parts of the block.
class PlaneEncoder {
 public:
  // What put() needs at most: of every plane a size, a method and its bytes.
  static constexpr std::size_t bound(std::size_t num_values, std::size_t width) {
    return width * (num_values + 5);
  }
  void put(BlockEncoder& encoder, const void* values, std::size_t num_values, std::size_t width,
           std::uint8_t*& next);

 private:
  Scratch<std::uint8_t> planes_;
};

class PlaneDecoder {
 public:
  // `block` is what is left of the block, and must be used up.
  DecodeStatus decode(BlockDecoder& decoder, std::span<const std::uint8_t> block,
                      std::size_t num_values, std::size_t width, void* values);

 private:
  Scratch<std::uint8_t> planes_;
};

}  // namespace slimgrad

#endif  // SLIMGRAD_ARRAYS_CODING_PAYLOAD_PARTS_H_
