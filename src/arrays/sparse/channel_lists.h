// The survivors of a gradient by channel, as the gradient of the weight wants them: a list for
// every channel of a band of pixels.
#ifndef SLIMGRAD_ARRAYS_SPARSE_CHANNEL_LISTS_H_
#define SLIMGRAD_ARRAYS_SPARSE_CHANNEL_LISTS_H_

#include <cstdint>

#include "arrays/sparse/backward.h"
#include "arrays/sparse/images.h"
#include "arrays/sparse/layout.h"
#include "arrays/sparse/tap_tiles.h"
#include "kernels/sparse/compact_rows.h"
#include "kernels/sparse/sums.h"

namespace slimgrad {

// The lists of a band lie in one of some slots. A survivor's offset is that of the first tap of its
// pixel in the band's input tile.
class ChannelLists {
 public:
  ChannelLists(const ConvShape& shape, const TapTiles& tiles, const Bands& bands,
               std::int64_t slots, SparseWorkspace& workspace);
  // Bytes for each slot.
  static std::int64_t slot_bytes(const ConvShape& shape, const Bands& bands) {
    return band_room(shape, bands) * std::int64_t{sizeof(float) + sizeof(std::int32_t)};
  }

  // Writes the survivors of a band by channel and in each by pixel. Returns how many.
  template <typename T>
  std::int64_t compress(std::int64_t band, std::int64_t slot, const Images<const T>& gradient,
                        const kernels::LoopTreatment& treatment, const PruneDraw& draw) const;

  kernels::SurvivorArrays survivors() const {
    return {workspace_.values.data(), workspace_.offsets.data()};
  }
  // The survivors of a channel begin at its start and end at the next one.
  std::int64_t* starts(std::int64_t slot) const {
    return workspace_.starts.data() + slot * (shape_.out_channels + 1);
  }

 private:
  template <typename T>
  void compress_last(const Bands::Band& band, std::int64_t slot, const T* gradient,
                     const kernels::LoopTreatment& treatment, const PruneDraw& draw) const;
  template <typename T>
  void compress_first(const Bands::Band& band, std::int64_t slot, const T* gradient,
                      const kernels::LoopTreatment& treatment, const PruneDraw& draw) const;

  // Where the first taps of the gradient pixels of the band's first images lie in the tile.
  void find_offsets(const Bands::Band& band, std::int64_t images, std::int32_t* offsets) const;
  // For the survivors of a band.
  static std::int64_t band_room(const ConvShape& shape, const Bands& bands) {
    return bands.max_pixels() * shape.out_channels +
           static_cast<std::int64_t>(kernels::kCompactSlack);
  }

  const ConvShape& shape_;
  const TapTiles& tiles_;
  const Bands& bands_;
  SparseWorkspace& workspace_;
};

}  // namespace slimgrad

#endif  // SLIMGRAD_ARRAYS_SPARSE_CHANNEL_LISTS_H_
