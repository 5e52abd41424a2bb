// The draws of a chunk of neighbours (base/rng.h), each Philox block made once and kept where all
// threads find it.
#ifndef SLIMGRAD_DEVICE_DRAWS_H_
#define SLIMGRAD_DEVICE_DRAWS_H_

#include <cstdint>

#include "base/rng.h"
#include "device/block.h"

namespace slimgrad::device {

struct alignas(16) PhiloxBlock {
  std::uint32_t words[4];
};

template <Stream kOfStream, int kValues>
struct ChunkDraws {
  static constexpr Stream kStream = kOfStream;
  static constexpr int kStrata = kStream == Stream::kPrune ? static_cast<int>(kPruneStrata) : 1;
  static constexpr int kTile = static_cast<int>(kTileElements);
  static constexpr int kNumBlocks = kValues / kTile * static_cast<int>(kTileBlocks) / kStrata;
  static_assert(kValues % (kTile * kStrata) == 0);

  PhiloxBlock blocks[kNumBlocks];

  // A step. REQUIRES: `first` is a multiple of kValues.
  template <class SomeBlock>
  SLIMGRAD_HD void fill(const SomeBlock& block, const RandomStream& random, std::uint64_t first) {
    const std::uint64_t first_block = first / kTile / kStrata * kTileBlocks;
    block.each([&](int thread) {
      for (int i = thread; i < kNumBlocks; i += SomeBlock::kThreads) {
        const PhiloxWords words =
            random.block(first_block + static_cast<std::uint64_t>(i), random.stream);
        SLIMGRAD_UNROLL
        for (int w = 0; w < 4; ++w) blocks[i].words[w] = words[w];
      }
    });
  }

  // RandomStream::draw() of the chunk's element e.
  SLIMGRAD_HD std::uint32_t at(const RandomStream& random, int e) const {
    const int tile = e / kTile;
    const std::uint32_t word = blocks[tile / kStrata * static_cast<int>(kTileBlocks) + e % 8 / 2]
                                   .words[e / 16 % 2 * 2 + e % 2];
    return ((e / 8 % 2 == 0 ? word : word >> 16) +
            random.shift_of(static_cast<std::uint64_t>(tile % kStrata))) &
           0xffffu;
  }
};

}  // namespace slimgrad::device

#endif  // SLIMGRAD_DEVICE_DRAWS_H_
