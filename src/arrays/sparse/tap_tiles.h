// The input of a convolution, or its gradient, in tiles: some channels of every pixel that some
// rows of the output's gradient reach, with padding, pixel after pixel. So the taps of one kernel
// row lie one behind the other and its rows have a fixed distance, and one survivor of the gradient
// meets several taps at once: with a 3x3 kernel and tiles of eight channels nine vectors. Tiles
// that narrow fit the first-level cache for hundreds of pixels.
#ifndef SLIMGRAD_ARRAYS_SPARSE_TAP_TILES_H_
#define SLIMGRAD_ARRAYS_SPARSE_TAP_TILES_H_

#include <algorithm>
#include <cstdint>

#include "arrays/sparse/conv_shape.h"
#include "arrays/sparse/layout.h"
#include "kernels/sparse/sums.h"

namespace slimgrad {

class TapTiles {
 public:
  explicit TapTiles(const ConvShape& shape)
      : y(shape.y), x(shape.x), columns(x.length(shape.x, shape.x.out)), shape_(shape) {
    const std::int64_t touching = shape.x.dilation == 1 ? shape.x.taps : 1;
    constexpr std::int64_t kMost = kernels::kMaxEights, kWidest = 8;
    rows_ = std::min<std::int64_t>(shape.y.taps, kernels::kMaxSumRows);
    const std::int64_t eights = std::clamp<std::int64_t>(kMost / (touching * rows_), 1, kWidest);
    tiles_ = column_tiles(shape.group_in(), static_cast<int>(eights));
    columns_ = std::min(touching, kMost / tiles_.eights);
    rows_ = std::min(rows_, kMost / (columns_ * tiles_.eights));
    constexpr std::int64_t kCopiedColumns = 32;
    copied_ = std::clamp<std::int64_t>(kCopiedColumns / pixel_size(), 1, tiles_.count);
  }

  // The tiles of one group.
  std::int64_t count() const { return tiles_.count; }
  // Tiles are copied from or to the tensor several at a time, in order that whole cache lines of it
  // are used.
  std::int64_t copied() const { return copied_; }
  std::int64_t copies() const { return (tiles_.count + copied_ - 1) / copied_; }

  std::int64_t pixel_size() const { return tiles_.width(); }
  // The size of an output channel's weights for one tile, tap by tap.
  std::int64_t weights_size() const { return shape_.taps() * pixel_size(); }
  std::int64_t bytes_a_pixel() const { return pixel_size() * std::int64_t{sizeof(float)}; }

  // Rows of a tile that `lines` rows of the gradient reach, and their size.
  std::int64_t rows(std::int64_t lines) const { return y.length(shape_.y, lines); }
  std::int64_t size(std::int64_t lines) const { return rows(lines) * row_size(); }
  std::int64_t row_size() const { return columns * pixel_size(); }
  // From one row of the gradient to the next, and from one pixel of it to the next.
  std::int64_t line_step() const { return y.tile_step * row_size(); }
  std::int64_t pixel_step() const { return x.tile_step * pixel_size(); }

  // Taps that are met at once, from (ty, tx) on.
  struct Taps {
    int eights, rows;
    std::int64_t tile_offset, tile_stride;        // of the first one, and from row to row
    std::int64_t weights_offset, weights_stride;  // the same in weights
  };
  // Calls visit(taps) for all of them.
  template <typename Visit>
  void for_taps(const Visit& visit) const {
    for (std::int64_t ty = 0; ty < shape_.y.taps; ty += rows_)
      for (std::int64_t tx = 0; tx < shape_.x.taps; tx += columns_) {
        const std::int64_t stride = shape_.y.dilation * row_size();
        visit(
            Taps{.eights = static_cast<int>(std::min(columns_, shape_.x.taps - tx)) * tiles_.eights,
                 .rows = static_cast<int>(std::min(rows_, shape_.y.taps - ty)),
                 .tile_offset = ty * stride + tx * shape_.x.dilation * pixel_size(),
                 .tile_stride = stride,
                 .weights_offset = (ty * shape_.x.taps + tx) * pixel_size(),
                 .weights_stride = shape_.x.taps * pixel_size()});
      }
  }

  const TileAxis y, x;
  const std::int64_t columns;  // pixels of a tile's row

 private:
  ConvShape shape_;
  ColumnTiles tiles_;            // channels of the input
  std::int64_t columns_, rows_;  // taps that are met at once
  std::int64_t copied_;
};

}  // namespace slimgrad

#endif  // SLIMGRAD_ARRAYS_SPARSE_TAP_TILES_H_
