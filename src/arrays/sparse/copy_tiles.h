// Copies the input pixels that a band of the gradient reaches to tiles (arrays/sparse/tap_tiles.h).
#ifndef SLIMGRAD_ARRAYS_SPARSE_COPY_TILES_H_
#define SLIMGRAD_ARRAYS_SPARSE_COPY_TILES_H_

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "arrays/sparse/conv_shape.h"
#include "arrays/sparse/images.h"
#include "arrays/sparse/layout.h"
#include "arrays/sparse/tap_tiles.h"
#include "arrays/sparse/tile_values.h"

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

  void copy(const Bands::Band& band, const Images<const T>& images, float* to) const {
    if (images.channels_first()) return copy_first(band, images.data, to);
    const T* const x =
        images.data + range_.group * shape_.group_in() + range_.first * tiles_.pixel_size();
    if (shape_.is_linear())
      return copy_pixels(x + band.first_pixel * shape_.in_channels, shape_.in_channels, band.pixels,
                         to);
    for_rows(band, to, [&](std::int64_t image, std::int64_t y, float* row) {
      copy_row(x + (image * shape_.y.in + y) * shape_.x.in * shape_.in_channels, row);
    });
  }

 private:
  // copy(image, y, to) for the rows of the input; padding is cleared.
  template <typename Copy>
  void for_rows(const Bands::Band& band, float* to, const Copy& copy) const {
    for (std::int64_t image = 0; image < band.images; ++image)
      for (std::int64_t row = 0; row < tiles_.rows(band.rows); ++row, to += tiles_.row_size()) {
        const std::int64_t y =
            band.first_row * shape_.y.stride - shape_.y.padding + row * tiles_.y.source_step;
        if (y < 0 || y >= shape_.y.in)
          clear_pixels(0, tiles_.columns, to);
        else
          copy(band.first_image + image, y, to);
      }
  }

  // The pixels of a tile's row that are no padding: [first, last), from the input's pixel `source`
  // on.
  struct Inside {
    std::int64_t first, last, source;
  };
  Inside inside() const {
    const ConvAxis& axis = shape_.x;
    const std::int64_t step = tiles_.x.source_step;
    const std::int64_t first = std::min(tiles_.columns, (axis.padding + step - 1) / step);
    const std::int64_t last =
        std::clamp((axis.in - 1 + axis.padding) / step + 1, first, tiles_.columns);
    return {first, last, first * step - axis.padding};
  }

  // A row of the input: padding, pixels, padding.
  void copy_row(const T* row, float* to) const {
    const Inside pixels = inside();
    clear_pixels(0, pixels.first, to);
    copy_pixels(row + pixels.source * shape_.in_channels, tiles_.x.source_step * shape_.in_channels,
                pixels.last - pixels.first, to + pixels.first * tiles_.pixel_size());
    clear_pixels(pixels.last, tiles_.columns, to);
  }

  // With the channels first. A layer that looks at one pixel at a time has no padding, so that the
  // pixels of an image are one row.
  void copy_first(const Bands::Band& band, const T* x, float* to) const {
    const std::int64_t image_pixels = shape_.y.in * shape_.x.in;
    const auto channels = [&](std::int64_t image) {
      return x + (image * shape_.in_channels + range_.group * shape_.group_in() +
                  range_.first * tiles_.pixel_size()) *
                     image_pixels;
    };
    if (shape_.is_linear()) {
      const std::int64_t pixels = band.rows * shape_.x.in;
      for (std::int64_t i = 0; i < band.images; ++i, to += pixels * tiles_.pixel_size())
        transpose_pixels(channels(band.first_image + i) + band.first_row * shape_.x.in,
                         image_pixels, pixels, to);
      return;
    }
    const Inside pixels = inside();
    for_rows(band, to, [&](std::int64_t image, std::int64_t y, float* row) {
      clear_pixels(0, pixels.first, row);
      transpose_pixels(channels(image) + y * shape_.x.in + pixels.source, image_pixels,
                       pixels.last - pixels.first, row + pixels.first * tiles_.pixel_size());
      clear_pixels(pixels.last, tiles_.columns, row);
    });
  }

  // `stride`: from channel to channel.
  void transpose_pixels(const T* from, std::int64_t stride, std::int64_t count, float* to) const {
    const std::int64_t width = tiles_.pixel_size(), step = tiles_.x.source_step;
    for (std::int64_t t = range_.first; t < range_.last; ++t, to += size_, from += width * stride) {
      const std::int64_t channels = std::min(width, shape_.group_in() - t * width);
      if (step == 1)
        kernels::transpose(from, stride, channels, count, to, width);
      else
        for (std::int64_t i = 0; i < count; ++i)
          for (std::int64_t c = 0; c < channels; ++c)
            to[i * width + c] = to_float(from[c * stride + i * step]);
      if (channels < width)
        for (std::int64_t i = 0; i < count; ++i)
          std::fill(to + i * width + channels, to + (i + 1) * width, 0.0f);
    }
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
  // Copies eight channels of each of `num_tiles` tiles: the usual cases.
  template <int num_tiles>
  void copy_eight_channels(const float* from, std::int64_t step, std::int64_t count,
                           float* to) const {
    for (std::int64_t i = 0; i < count; ++i, from += step, to += 8) {
      prefetch(from + kPixelsAhead * step, 8 * num_tiles);
      for (int t = 0; t < num_tiles; ++t) copy_eights(from + 8 * t, 8, to + t * size_);
    }
  }

  // Reads some channels of every pixel, a pattern that hardware prefetching does not recognise.
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

#endif  // SLIMGRAD_ARRAYS_SPARSE_COPY_TILES_H_
