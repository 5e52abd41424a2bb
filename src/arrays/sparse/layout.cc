#include "arrays/sparse/layout.h"

#include <algorithm>

namespace slimgrad {
namespace {

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace

Bands::Bands(const ConvShape& shape, std::int64_t bytes_per_pixel, std::int64_t wanted)
    : shape_(shape) {
  cut(bytes_per_pixel, kFirstLevelBytes);
  for (std::int64_t bytes = 2 * kFirstLevelBytes;
       max_pixels() < wanted && bytes <= kSecondLevelBytes; bytes *= 2)
    cut(bytes_per_pixel, bytes);
}

void Bands::cut(std::int64_t bytes_per_pixel, std::int64_t most_bytes) {
  const TileAxis y(shape_.y), x(shape_.x);
  const std::int64_t width = x.length(shape_.x, shape_.x.out);
  const auto bytes_of_rows = [&](std::int64_t rows) {
    return y.length(shape_.y, rows) * width * bytes_per_pixel;
  };
  const std::int64_t image_bytes = bytes_of_rows(shape_.y.out);
  if (image_bytes <= most_bytes) {
    images_ = std::clamp<std::int64_t>(most_bytes / image_bytes, 1, shape_.images);
    rows_ = shape_.y.out;
  } else {
    images_ = 1;
    rows_ = 1;
    while (rows_ < shape_.y.out && bytes_of_rows(rows_ + 1) <= most_bytes) ++rows_;
    rows_ = divide_up(shape_.y.out, divide_up(shape_.y.out, rows_));  // evenly
  }
  bands_an_image_ = divide_up(shape_.y.out, rows_);
  count_ = images_ > 1 ? divide_up(shape_.images, images_) : shape_.images * bands_an_image_;
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

double row_cost(std::int64_t tile_bytes) {
  constexpr double kFirstLevel = 0.26, kSecondLevel = 0.40, kThirdLevel = 0.55;
  const auto share = [&](std::int64_t cache) {
    return std::min(1.0, static_cast<double>(cache) / static_cast<double>(tile_bytes));
  };
  const double first = share(kFirstLevelBytes), second = share(kSecondLevelBytes);
  return kFirstLevel * first + kSecondLevel * (second - first) + kThirdLevel * (1 - second);
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
