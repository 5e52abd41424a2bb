// How a sparse backward pass cuts its work: into bands of gradient rows that are compressed as one,
// tiles of columns that stay in the cache, and parts that are summed at the end. Everything follows
// from the shape and the sparsity alone, never from the number of threads, so that neither do the
// results.
#ifndef SLIMGRAD_ARRAYS_SPARSE_LAYOUT_H_
#define SLIMGRAD_ARRAYS_SPARSE_LAYOUT_H_

#include <cstdint>

#include "arrays/sparse/conv_shape.h"

namespace slimgrad {

// What one core can expect to keep in its first- and second-level cache while it streams other data
// past.
inline constexpr std::int64_t kFirstLevelBytes = 24 << 10;
inline constexpr std::int64_t kSecondLevelBytes = 192 << 10;

// Consecutive rows (pixels) of the gradient: some whole images, or some pixel rows of one image.
class Bands {
 public:
  // The number of rows whose input tile fits the first-level cache; if these have fewer than
  // `wanted` pixels, more, within the second-level cache. `bytes_per_pixel`: of the tile.
  Bands(const ConvShape& shape, std::int64_t bytes_per_pixel, std::int64_t wanted);

  std::int64_t count() const { return count_; }
  std::int64_t max_pixels() const { return images_ * rows_ * shape_.x.out; }
  // Whether they are whole images.
  bool hold_images() const { return bands_an_image_ == 1; }

  struct Band {
    std::int64_t first_image, images;  // images it touches
    std::int64_t first_row, rows;      // of each of them
    std::int64_t first_pixel, pixels;  // of the gradient, consecutive
  };
  Band operator[](std::int64_t band) const;
  // The band of a pixel row.
  std::int64_t at(std::int64_t image, std::int64_t row) const {
    return image / images_ * bands_an_image_ + row / rows_;
  }

 private:
  void cut(std::int64_t bytes_per_pixel, std::int64_t most_bytes);

  ConvShape shape_;
  std::int64_t images_, rows_;   // of a full band
  std::int64_t bands_an_image_;  // 1 if a band holds whole images
  std::int64_t count_;
};

// Columns in tiles of 8 * eights, the last one padded.
struct ColumnTiles {
  int eights;
  std::int64_t count;

  std::int64_t width() const { return 8 * eights; }
};
// The cheapest width of at most `max_eights`: wide tiles share overhead, narrow ones fit better.
ColumnTiles column_tiles(std::int64_t columns, int max_eights);
// For the gradient of the input.
inline constexpr int kMaxInputEights = 8;

// The survivors that outweigh the fixed cost of a sum: loading and storing totals, and its end.
inline constexpr double kWantedSurvivors = 8;
inline constexpr double kSmallestDensity = 1e-4;

// Nanoseconds for eight columns of a row that is picked at random from a tile, about what
// bench/kernels_sparse.cc measures; only the proportions matter, to choose between ways to cut.
double row_cost(std::int64_t tile_bytes);

// One direction of a band's input tile. Tile pixel t of the band that starts at output o is input
// pixel (o * stride - padding) + t * source_step; output o + i reads from tile pixel i * tile_step
// on. With one tap, input pixels between the strides are not copied.
struct TileAxis {
  std::int64_t source_step, tile_step;

  explicit TileAxis(const ConvAxis& axis)
      : source_step(axis.taps == 1 ? axis.stride : 1),
        tile_step(axis.taps == 1 ? 1 : axis.stride) {}

  std::int64_t length(const ConvAxis& axis, std::int64_t outputs) const {
    return (outputs - 1) * tile_step + axis.dilation * (axis.taps - 1) + 1;
  }
};

}  // namespace slimgrad

#endif  // SLIMGRAD_ARRAYS_SPARSE_LAYOUT_H_
