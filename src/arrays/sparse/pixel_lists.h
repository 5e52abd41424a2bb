// The survivors of a gradient by pixel, as the gradient of the input wants them: a list for every
// pixel and block of channels.
#ifndef SLIMGRAD_ARRAYS_SPARSE_PIXEL_LISTS_H_
#define SLIMGRAD_ARRAYS_SPARSE_PIXEL_LISTS_H_

#include <cstdint>
#include <vector>

#include "arrays/sparse/backward.h"
#include "arrays/sparse/images.h"
#include "arrays/sparse/layout.h"
#include "kernels/sparse/compact_rows.h"
#include "kernels/sparse/sums.h"

namespace slimgrad {

// Output channels of one group whose weights are used together.
struct ChannelBlock {
  std::int64_t first_channel, channels;  // counted over all groups
  std::int64_t first_in_group;
};

class PixelLists {
 public:
  // What lists are for decides how survivors find the rows of the weight.
  struct Offsets {
    std::int64_t channel_step;          // from channel to channel, and
    std::int64_t pixel_step_a_channel;  // from pixel to pixel of a row, times a block's channels
  };

  // In blocks of at most `channels` channels.
  PixelLists(const ConvShape& shape, const Bands& bands, std::int64_t channels, Offsets offsets,
             SparseWorkspace& workspace);

  const std::vector<ChannelBlock>& blocks() const { return blocks_; }
  // visit(index, block) for the blocks of a group.
  template <typename Visit>
  void for_blocks(std::int64_t group, const Visit& visit) const {
    const std::size_t count = blocks_.size() / static_cast<std::size_t>(shape_.groups);
    const std::size_t first = static_cast<std::size_t>(group) * count;
    for (std::size_t b = first; b < first + count; ++b) visit(b, blocks_[b]);
  }

  // Writes the survivors, band by band and in each block by block. Returns how many there are.
  template <typename T>
  std::int64_t compress(const Images<const T>& gradient, const PruneDraw& draw,
                        const Parallel& parallel) const;

  kernels::SurvivorArrays survivors() const {
    return {workspace_.values.data(), workspace_.offsets.data()};
  }
  // The survivors of a pixel of the band begin at its start and end at the next one.
  std::int64_t* starts(std::size_t block, std::int64_t band, std::int64_t pixel) const {
    return workspace_.starts.data() + static_cast<std::int64_t>(block) * starts_a_block() + band +
           pixel;
  }

 private:
  template <typename T>
  std::int64_t compress_last(std::int64_t band, const T* gradient,
                             const kernels::LoopTreatment& treatment, const PruneDraw& draw) const;
  template <typename T>
  std::int64_t compress_first(std::int64_t band, const T* gradient,
                              const kernels::LoopTreatment& treatment, const PruneDraw& draw) const;

  // The offsets of `pixels` pixels, in whole rows, for a block of `channels` channels.
  void write_offsets(std::int64_t pixels, std::int64_t channels,
                     std::vector<std::int32_t>& offsets) const;
  // Where the survivors of a band's block begin.
  std::int64_t block_start(std::int64_t band, std::size_t block) const {
    return band * band_room() + blocks_[block].first_channel * bands_.max_pixels() +
           static_cast<std::int64_t>(block * kernels::kCompactSlack);
  }

  // Every band has a start for each of its pixels and one for their end.
  std::int64_t starts_a_block() const { return shape_.out_pixels() + bands_.count(); }
  // For the survivors of a band.
  std::int64_t band_room() const {
    return bands_.max_pixels() * shape_.out_channels +
           static_cast<std::int64_t>(blocks_.size() * kernels::kCompactSlack);
  }

  ConvShape shape_;
  Bands bands_;
  Offsets offsets_;
  SparseWorkspace& workspace_;
  std::vector<ChannelBlock> blocks_;
};

}  // namespace slimgrad

#endif  // SLIMGRAD_ARRAYS_SPARSE_PIXEL_LISTS_H_
