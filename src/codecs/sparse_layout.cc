#include "codecs/sparse_layout.h"

#include <algorithm>

namespace slimgrad {
namespace {

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace

Bands::Bands(const ConvShape& shape, std::int64_t bytes_per_pixel) : shape_(shape) {
  const TileAxis y(shape.y), x(shape.x);
  const std::int64_t width = x.length(shape.x, shape.x.out);
  const auto bytes_of_rows = [&](std::int64_t rows) {
    return y.length(shape.y, rows) * width * bytes_per_pixel;
  };
  const std::int64_t image_bytes = bytes_of_rows(shape.y.out);
  if (image_bytes <= kTileBytes) {
    images_ = std::clamp<std::int64_t>(kTileBytes / image_bytes, 1, shape.images);
    rows_ = shape.y.out;
  } else {
    images_ = 1;
    rows_ = 1;
    while (rows_ < shape.y.out && bytes_of_rows(rows_ + 1) <= kTileBytes) ++rows_;
    rows_ = divide_up(shape.y.out, divide_up(shape.y.out, rows_));  // evenly
  }
  bands_an_image_ = divide_up(shape.y.out, rows_);
  count_ = images_ > 1 ? divide_up(shape.images, images_) : shape.images * bands_an_image_;
}

Bands::Band Bands::operator[](std::int64_t band) const {
  Band result;
  result.first_image = band / bands_an_image_ * images_;
  result.images = std::min(images_, shape_.images - result.first_image);
  result.first_row = band % bands_an_image_ * rows_;
  result.rows = std::min(rows_, shape_.y.out - result.first_row);
  result.first_pixel = (result.first_image * shape_.y.out + result.first_row) * shape_.x.out;
  result.pixels = result.images * result.rows * shape_.x.out;
  return result;
}

ColumnTiles column_tiles(std::int64_t columns, int max_eights) {
  // A survivor costs its eights and about one and a half more, for the broadcast and the loop.
  const auto cost = [&](int eights) {
    return static_cast<double>(divide_up(columns, 8 * eights)) * (eights + 1.5);
  };
  int best = 1;
  for (int eights = 2; eights <= max_eights; ++eights)
    if (cost(eights) < cost(best)) best = eights;
  return {best, divide_up(columns, 8 * best)};
}

}  // namespace slimgrad
