// How the sparse backward pass cuts its work: what every cut must keep, for every shape.
#include "arrays/sparse/layout.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "arrays/sparse/samples.h"
#include "arrays/sparse/tap_tiles.h"

namespace slimgrad {
namespace {

class SparseCuts : public testing::TestWithParam<Case> {};

// Every pixel row of the gradient belongs to one band, in order, and at() finds it.
TEST_P(SparseCuts, BandsPartitionTheGradient) {
  const ConvShape shape = GetParam().shape;
  for (const std::int64_t bytes : {32, 256, 4096})
    for (const std::int64_t wanted : {1, 100, 1000000}) {
      SCOPED_TRACE(testing::Message() << bytes << " bytes a pixel, wanted " << wanted);
      const Bands bands(shape, bytes, wanted);
      std::int64_t pixels = 0, largest = 0;
      for (std::int64_t b = 0; b < bands.count(); ++b) {
        const Bands::Band band = bands[b];
        ASSERT_EQ(band.first_pixel, pixels);
        ASSERT_EQ(band.first_pixel,
                  (band.first_image * shape.y.out + band.first_row) * shape.x.out);
        ASSERT_EQ(band.pixels, band.images * band.rows * shape.x.out);
        ASSERT_TRUE(band.images == 1 || band.rows == shape.y.out);
        ASSERT_EQ(bands.hold_images(), band.rows == shape.y.out);
        for (std::int64_t i = 0; i < band.images; ++i)
          for (std::int64_t r = 0; r < band.rows; ++r)
            ASSERT_EQ(bands.at(band.first_image + i, band.first_row + r), b);
        pixels += band.pixels;
        largest = std::max(largest, band.pixels);
      }
      EXPECT_EQ(pixels, shape.out_pixels());
      EXPECT_EQ(largest, bands.max_pixels());
    }
}

TEST_P(SparseCuts, BandsFitTheCacheThatTheyAreCutFor) {
  const ConvShape shape = GetParam().shape;
  const TileAxis y(shape.y), x(shape.x);
  for (const std::int64_t bytes : {32, 256}) {
    const auto tile_bytes = [&](const Bands& bands) {
      const Bands::Band band = bands[0];
      return band.images * y.length(shape.y, band.rows) * x.length(shape.x, shape.x.out) * bytes;
    };
    // A band has at least one row, whether that fits or not.
    const Bands few(shape, bytes, 1), many(shape, bytes, 1000000);
    const auto fits = [&](const Bands& bands, std::int64_t cache) {
      return bands.max_pixels() == shape.x.out || tile_bytes(bands) <= cache;
    };
    EXPECT_TRUE(fits(few, kFirstLevelBytes));
    EXPECT_TRUE(fits(many, kSecondLevelBytes));
    EXPECT_GE(many.max_pixels(), few.max_pixels());
    // What is wanted and small enough for the first level costs nothing more.
    EXPECT_EQ(Bands(shape, bytes, few.max_pixels()).count(), few.count());
  }
}

// Every tap is met once, where the tile has the input pixel that it reads.
TEST_P(SparseCuts, TapTilesMeetEveryTapAtItsPixel) {
  const ConvShape shape = GetParam().shape;
  const TapTiles tiles(shape);
  const std::int64_t lines = std::min<std::int64_t>(shape.y.out, 3), size = tiles.pixel_size();
  // The tile's row or column of a tap, for an output so many after the band's first.
  const auto position = [](const ConvAxis& axis, const TileAxis& tile, std::int64_t output,
                           std::int64_t tap) {
    const std::int64_t input = output * axis.stride + tap * axis.dilation;
    EXPECT_EQ(input % tile.source_step, 0);
    return input / tile.source_step;
  };
  std::vector<int> met(static_cast<std::size_t>(shape.taps()));
  tiles.for_taps([&](const TapTiles::Taps& taps) {
    ASSERT_LE(taps.rows, kernels::kMaxSumRows);
    ASSERT_LE(taps.rows * taps.eights, kernels::kMaxEights);
    ASSERT_EQ(8 * taps.eights % size, 0);
    for (std::int64_t row = 0; row < taps.rows; ++row)
      for (std::int64_t column = 0; column < 8 * taps.eights / size; ++column) {
        const std::int64_t weights =
            taps.weights_offset + row * taps.weights_stride + column * size;
        ASSERT_EQ(weights % size, 0);
        ASSERT_LT(weights, tiles.weights_size());
        const std::int64_t tap = weights / size;
        ++met[static_cast<std::size_t>(tap)];
        const std::int64_t at = taps.tile_offset + row * taps.tile_stride + column * size;
        for (std::int64_t line = 0; line < lines; ++line)
          for (std::int64_t pixel = 0; pixel < shape.x.out; ++pixel) {
            const std::int64_t y = position(shape.y, tiles.y, line, tap / shape.x.taps);
            const std::int64_t x = position(shape.x, tiles.x, pixel, tap % shape.x.taps);
            ASSERT_LT(x, tiles.columns);
            ASSERT_LT(y, tiles.rows(lines));
            ASSERT_EQ(line * tiles.line_step() + pixel * tiles.pixel_step() + at,
                      (y * tiles.columns + x) * size);
          }
      }
  });
  EXPECT_EQ(std::ranges::count(met, 1), shape.taps());
}

TEST_P(SparseCuts, TapTilesHoldEveryChannel) {
  const ConvShape shape = GetParam().shape;
  const TapTiles tiles(shape);
  EXPECT_GE(tiles.count() * tiles.pixel_size(), shape.group_in());
  EXPECT_LT((tiles.count() - 1) * tiles.pixel_size(), shape.group_in());
  EXPECT_GE(tiles.copies() * tiles.copied(), tiles.count());
  EXPECT_LT((tiles.copies() - 1) * tiles.copied(), tiles.count());
  EXPECT_EQ(tiles.size(1), tiles.rows(1) * tiles.columns * tiles.pixel_size());
}

INSTANTIATE_TEST_SUITE_P(Shapes, SparseCuts, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

TEST(ColumnTiles, HoldEveryColumnAtTheLowestCost) {
  for (std::int64_t columns = 1; columns <= 300; ++columns)
    for (const int most : {1, 4, 8, 12}) {
      const ColumnTiles tiles = column_tiles(columns, most);
      ASSERT_GE(tiles.eights, 1);
      ASSERT_LE(tiles.eights, most);
      ASSERT_GE(tiles.count * tiles.width(), columns);
      ASSERT_LT((tiles.count - 1) * tiles.width(), columns);
      // Halves of an eight that a survivor costs: two each, and three for a tile.
      for (int eights = 1; eights <= most; ++eights)
        ASSERT_LE(tiles.count * (2 * tiles.eights + 3),
                  (columns + 8 * eights - 1) / (8 * eights) * (2 * eights + 3))
            << columns << ' ' << most << ' ' << eights;
    }
  EXPECT_EQ(column_tiles(72, 8).eights, 5);  // two tiles of 40; nine eights in one are too wide
}

}  // namespace
}  // namespace slimgrad
