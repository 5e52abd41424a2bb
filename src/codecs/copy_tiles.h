// Copies the input pixels that a band of the gradient reaches to tiles (codecs/tap_tiles.h).
#ifndef SLIMGRAD_CODECS_COPY_TILES_H_
#define SLIMGRAD_CODECS_COPY_TILES_H_

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "codecs/conv_shape.h"
#include "codecs/sparse_layout.h"
#include "codecs/tap_tiles.h"
#include "codecs/tile_values.h"

namespace slimgrad {

// Some tiles of a group.
struct TileRange {
  std::int64_t group, first, last;
};

template <typename T>
class TileCopy {
 public:
  // To `size` floats for each tile, one tile behind the other.
  TileCopy(const ConvShape& shape, const TapTiles& tiles, const TileRange& range, std::int64_t size)
      : shape_(shape), tiles_(tiles), range_(range), size_(size) {}

  void copy(const Bands::Band& band, const T* x, float* to) const {
    x += range_.group * shape_.group_in() + range_.first * tiles_.pixel_size();
    if (shape_.is_linear())
      return copy_pixels(x + band.first_pixel * shape_.in_channels, shape_.in_channels, band.pixels,
                         to);
    for (std::int64_t image = 0; image < band.images; ++image)
      for (std::int64_t row = 0; row < tiles_.rows(band.rows); ++row, to += tiles_.row_size()) {
        const std::int64_t y =
            band.first_row * shape_.y.stride - shape_.y.padding + row * tiles_.y.source_step;
        if (y < 0 || y >= shape_.y.in)
          clear_pixels(0, tiles_.columns, to);
        else
          copy_row(
              x + ((band.first_image + image) * shape_.y.in + y) * shape_.x.in * shape_.in_channels,
              to);
      }
  }

 private:
  // A row of the input: padding, pixels, padding.
  void copy_row(const T* row, float* to) const {
    const ConvAxis& axis = shape_.x;
    const std::int64_t step = tiles_.x.source_step;
    const std::int64_t first = std::min(tiles_.columns, (axis.padding + step - 1) / step);
    const std::int64_t last =
        std::clamp((axis.in - 1 + axis.padding) / step + 1, first, tiles_.columns);
    clear_pixels(0, first, to);
    copy_pixels(row + (first * step - axis.padding) * shape_.in_channels, step * shape_.in_channels,
                last - first, to + first * tiles_.pixel_size());
    clear_pixels(last, tiles_.columns, to);
  }

  void clear_pixels(std::int64_t first, std::int64_t last, float* to) const {
    const std::int64_t width = tiles_.pixel_size();
    for (std::int64_t t = range_.first; t < range_.last; ++t, to += size_)
      std::fill(to + first * width, to + last * width, 0.0f);
  }

  // `step`: from pixel to pixel.
  void copy_pixels(const T* from, std::int64_t step, std::int64_t count, float* to) const {
    const std::int64_t width = tiles_.pixel_size(), channels = shape_.group_in();
    const std::int64_t num_tiles = range_.last - range_.first;
    if constexpr (std::is_same_v<T, float>) {
      if (width == 8 && range_.last * width <= channels) {
        if (num_tiles == 4) return copy_eight_channels<4>(from, step, count, to);
        if (num_tiles == 2) return copy_eight_channels<2>(from, step, count, to);
      }
    }
    for (std::int64_t i = 0; i < count; ++i, from += step, to += width) {
      prefetch(from + kPixelsAhead * step, num_tiles * width);
      for (std::int64_t t = 0; t < num_tiles; ++t)
        load_tile_row(from + t * width, std::min(width, channels - (range_.first + t) * width),
                      width, to + t * size_);
    }
  }
  // Of each of so many tiles: the usual cases.
  template <int num_tiles>
  void copy_eight_channels(const float* from, std::int64_t step, std::int64_t count,
                           float* to) const {
    for (std::int64_t i = 0; i < count; ++i, from += step, to += 8) {
      prefetch(from + kPixelsAhead * step, 8 * num_tiles);
      for (int t = 0; t < num_tiles; ++t) copy_eights(from + 8 * t, 8, to + t * size_);
    }
  }

  // Some channels of every pixel: the CPU does not see by itself that it is the next ones' turn.
  static constexpr std::int64_t kPixelsAhead = 8;
  static void prefetch(const T* address, std::int64_t count) {
    constexpr std::int64_t kLine = 64 / sizeof(T);
    for (std::int64_t i = 0; i < count; i += kLine) __builtin_prefetch(address + i);
  }

  const ConvShape& shape_;
  const TapTiles& tiles_;
  TileRange range_;
  std::int64_t size_;
};

}  // namespace slimgrad

#endif  // SLIMGRAD_CODECS_COPY_TILES_H_
