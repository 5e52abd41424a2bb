// Every gradient pixel adds to the input pixels that it reached, in a tile with padding, whose
// inside is stored when all have been added:
//
//   W tile     rows (o, ty, tx) of one column tile
//   survivor   of channel o: the offset of its rows
//   sum        of a gradient pixel: all taps, at the place of tap (0, 0) in the tile of dX
//
// Tasks own pixel rows of dX: those of whole images, or of a part of one; then the rows of G around
// it are met by several tasks, and what they add outside is dropped. So parts are made large next
// to what the kernel reaches.
#include <algorithm>
#include <vector>

#include "arrays/sparse/input.h"
#include "arrays/sparse/pixel_lists.h"
#include "arrays/sparse/tap_tiles.h"
#include "base/stopwatch.h"
#include "kernels/sparse/sums.h"

namespace slimgrad {
namespace {

// Channels of a block: the weights of few stay in the first-level cache, but every block loads and
// stores the sums of every pixel once more.
std::int64_t cheapest_block(const ConvShape& shape, std::int64_t weights_bytes, double density) {
  constexpr double kSumNanoseconds = 5;
  const auto vectors = static_cast<double>(weights_bytes) / 32;
  std::int64_t best = shape.group_out();
  double lowest = 0;
  for (std::int64_t count = 1; count <= shape.group_out(); ++count) {
    const std::int64_t channels = (shape.group_out() + count - 1) / count;
    const double survivors = static_cast<double>(channels) * std::max(density, kSmallestDensity);
    const double cost = vectors * row_cost(channels * weights_bytes) +
                        (kSumNanoseconds + vectors * row_cost(weights_bytes)) / survivors;
    if (lowest == 0 || cost < lowest) {
      lowest = cost;
      best = channels;
    }
    if (channels <= 8) break;
  }
  return best;
}

template <typename T>
class SpreadInput {
 public:
  SpreadInput(const ConvShape& shape, double density, SparseWorkspace& workspace)
      : shape_(shape),
        tiles_(shape),
        bands_(shape, tiles_.bytes_a_pixel(), wanted_pixels(shape)),
        lines_a_stretch_(wanted_lines(shape, bands_)),
        lists_(shape, bands_, cheapest_block(shape, shape.taps() * tiles_.bytes_a_pixel(), density),
               {.channel_step = tiles_.weights_size(), .pixel_step_a_channel = 0}, workspace),
        weights_(workspace.dense.reserve(static_cast<std::size_t>(
            shape.groups * tiles_.count() * shape.group_out() * tiles_.weights_size()))) {
    for (std::int64_t x = 0; x < shape.x.in; ++x)
      columns_.push_back(place(shape.x, tiles_.x, x, 0, tiles_.columns));
  }

  SparseCounts run(const Images<const T>& gradient, const PruneDraw& draw, const T* weight,
                   const WeightStrides& strides, const Images<T>& dx, const Parallel& parallel) {
    Stopwatch watch;
    SparseCounts counts;
    parallel(shape_.groups * tiles_.count(),
             [&](std::int64_t tile) { pack_weight(tile, weight, strides); });
    counts.elements = shape_.out_pixels() * shape_.out_channels;
    counts.survivors = lists_.compress(gradient, draw, parallel);
    counts.compress_seconds = watch.lap();
    // Neighbouring tasks share tiles of the weight.
    const std::int64_t stretches = num_stretches();
    parallel(shape_.groups * tiles_.copies() * stretches, [&](std::int64_t task) {
      const std::int64_t copy = task / stretches;
      multiply(copy / tiles_.copies(), copy % tiles_.copies() * tiles_.copied(),
               stretch(task % stretches), dx);
    });
    counts.multiply_seconds = watch.lap();
    return counts;
  }

 private:
  // The pixels of a band: a whole image, unless there are too few images to occupy the threads.
  static std::int64_t wanted_pixels(const ConvShape& shape) {
    constexpr std::int64_t kWantedBands = 16;
    return std::max(kCompressedPixels,
                    std::min(shape.y.out * shape.x.out, shape.out_pixels() / kWantedBands));
  }
  // Rows of G for the rows of dX that a task owns.
  static std::int64_t wanted_lines(const ConvShape& shape, const Bands& bands) {
    const std::int64_t around = (shape.y.taps - 1) * shape.y.dilation / shape.y.stride;
    return std::min(shape.y.out, std::max(bands[0].rows, 4 * around));
  }
  // Bands of whole images are stretches; of others, stretches have lines_a_stretch_.
  std::int64_t stretches_an_image() const {
    return (shape_.y.out + lines_a_stretch_ - 1) / lines_a_stretch_;
  }
  std::int64_t num_stretches() const {
    return bands_.hold_images() ? bands_.count() : shape_.images * stretches_an_image();
  }

  // Tiles of all groups are counted in one row.
  float* weight_tile(std::int64_t tile) const {
    return weights_ + tile * shape_.group_out() * tiles_.weights_size();
  }

  void pack_weight(std::int64_t tile, const T* weight, const WeightStrides& strides) const {
    const std::int64_t group = tile / tiles_.count(), width = tiles_.pixel_size();
    const std::int64_t first = tile % tiles_.count() * width;
    float* row = weight_tile(tile);
    for (std::int64_t o = 0; o < shape_.group_out(); ++o)
      for (std::int64_t ty = 0; ty < shape_.y.taps; ++ty)
        for (std::int64_t tx = 0; tx < shape_.x.taps; ++tx, row += width)
          load_weights(weight + (group * shape_.group_out() + o) * strides.out + ty * strides.y +
                           tx * strides.x + first * strides.in,
                       strides.in, std::min(width, shape_.group_in() - first), width, row);
  }

  // What a task adds up: pixel rows of dX, of each of some images, from the rows of G that reach
  // them.
  struct Stretch {
    std::int64_t first_image, images;
    std::int64_t first_row, last_row;    // of dX
    std::int64_t first_line, last_line;  // of G
    std::int64_t image_size;             // of a tile
    std::int64_t size() const { return images * image_size; }
  };
  Stretch stretch(std::int64_t index) const {
    const ConvAxis& axis = shape_.y;
    const auto row_of = [&](std::int64_t line) {
      return line >= axis.out ? axis.in : std::min(axis.in, line * axis.stride);
    };
    Stretch s;
    if (bands_.hold_images()) {
      s.first_image = bands_[index].first_image;
      s.images = bands_[index].images;
      s.first_row = 0;
      s.last_row = axis.in;
    } else {
      const std::int64_t line = index % stretches_an_image() * lines_a_stretch_;
      s.first_image = index / stretches_an_image();
      s.images = 1;
      s.first_row = row_of(line);
      s.last_row = row_of(line + lines_a_stretch_);
    }
    const std::int64_t above = s.first_row + axis.padding - (axis.taps - 1) * axis.dilation;
    s.first_line = above <= 0 ? 0 : (above + axis.stride - 1) / axis.stride;
    s.last_line = std::min(axis.out, (s.last_row - 1 + axis.padding) / axis.stride + 1);
    s.image_size = s.first_line < s.last_line ? tiles_.size(s.last_line - s.first_line) : 0;
    return s;
  }

  void multiply(std::int64_t group, std::int64_t first_tile, const Stretch& s,
                const Images<T>& dx) const {
    const std::int64_t last_tile = std::min(first_tile + tiles_.copied(), tiles_.count());
    const std::int64_t size = (last_tile - first_tile) * s.size();
    struct Buffer : Scratch<float> {};
    const Pooled<Buffer> buffer;
    // And a row of dX, which may have to be transposed.
    const std::int64_t row = shape_.x.in * (last_tile - first_tile) * tiles_.pixel_size();
    float* const totals = buffer->reserve(static_cast<std::size_t>(size + row));
    std::fill(totals, totals + size, 0.0f);
    for (std::int64_t tile = first_tile; tile < last_tile; ++tile)
      lists_.for_blocks(group, [&](std::size_t b, const ChannelBlock& block) {
        const float* const weights = weight_tile(group * tiles_.count() + tile) +
                                     block.first_in_group * tiles_.weights_size();
        tiles_.for_taps([&](const TapTiles::Taps& taps) {
          spread(s, b, taps, weights, totals + (tile - first_tile) * s.size());
        });
      });
    store(s, group, first_tile, last_tile, totals, totals + size, dx);
  }

  void spread(const Stretch& s, std::size_t block, const TapTiles::Taps& taps, const float* weights,
              float* tile) const {
    const kernels::SumShape shape{.eights = taps.eights,
                                  .rows = taps.rows,
                                  .dense_stride = taps.weights_stride,
                                  .out_stride = taps.tile_stride};
    for (std::int64_t i = 0; i < s.images; ++i) {
      const std::int64_t image = s.first_image + i;
      float* line = tile + i * s.image_size + taps.tile_offset;
      for (std::int64_t y = s.first_line; y < s.last_line; ++y, line += tiles_.line_step()) {
        const std::int64_t pixel = (image * shape_.y.out + y) * shape_.x.out;
        kernels::sum_lists(shape,
                           {.survivors = lists_.survivors(),
                            .starts = lists_.starts(block, bands_.at(image, y), pixel),
                            .count = shape_.x.out},
                           weights + taps.weights_offset, line, tiles_.pixel_step(), true);
      }
    }
  }

  // Where input pixel i lies in a tile whose first gradient pixel is `first`; -1 if nowhere.
  static std::int64_t place(const ConvAxis& axis, const TileAxis& tile, std::int64_t i,
                            std::int64_t first, std::int64_t length) {
    const std::int64_t distance = i + axis.padding - first * axis.stride;
    if (distance < 0 || distance % tile.source_step != 0) return -1;
    return distance / tile.source_step < length ? distance / tile.source_step : -1;
  }

  void store(const Stretch& s, std::int64_t group, std::int64_t first_tile, std::int64_t last_tile,
             const float* totals, float* pixels, const Images<T>& dx) const {
    const std::int64_t rows = s.image_size / tiles_.row_size();
    const std::int64_t width = (last_tile - first_tile) * tiles_.pixel_size();
    const std::int64_t first_channel = first_tile * tiles_.pixel_size();
    const std::int64_t channels = std::min(width, shape_.group_in() - first_channel);
    for (std::int64_t i = 0; i < s.images; ++i)
      for (std::int64_t y = s.first_row; y < s.last_row; ++y) {
        const std::int64_t line = ((s.first_image + i) * shape_.y.in + y) * shape_.x.in;
        const std::int64_t row = place(shape_.y, tiles_.y, y, s.first_line, rows);
        const float* const from =
            row < 0 ? nullptr : totals + i * s.image_size + row * tiles_.row_size();
        if (!dx.channels_first()) {
          T* const to = dx.data + line * shape_.in_channels + group * shape_.group_in();
          store_row(s, {first_tile, last_tile, from}, shape_.in_channels, to + first_channel);
          continue;
        }
        store_row(s, {first_tile, last_tile, from}, width, pixels);
        store_pixels(pixels, width,
                     {line, shape_.x.in, group * shape_.group_in() + first_channel, channels},
                     shape_.y.in * shape_.x.in, shape_.in_channels, dx);
      }
  }

  // Some tiles' sums for a row of dX; from: of the first of them, or none if nothing reached it.
  struct TileRow {
    std::int64_t first_tile, last_tile;
    const float* from;
  };
  template <typename To>
  void store_row(const Stretch& s, const TileRow& row, std::int64_t step, To* to) const {
    static constexpr float kNothing[8 * kernels::kMaxEights] = {};
    const std::int64_t width = tiles_.pixel_size();
    for (std::int64_t x = 0; x < shape_.x.in; ++x, to += step) {
      const std::int64_t column = columns_[static_cast<std::size_t>(x)];
      for (std::int64_t t = row.first_tile; t < row.last_tile; ++t)
        store_tile_row(row.from == nullptr || column < 0
                           ? kNothing
                           : row.from + (t - row.first_tile) * s.size() + column * width,
                       std::min(width, shape_.group_in() - t * width),
                       to + (t - row.first_tile) * width);
    }
  }

  ConvShape shape_;
  TapTiles tiles_;
  Bands bands_;
  std::int64_t lines_a_stretch_;
  PixelLists lists_;
  float* weights_;
  std::vector<std::int64_t> columns_;  // of an input row's pixels in a tile
};

}  // namespace

template <typename T>
SparseCounts spread_input_gradient(const ConvShape& shape, const Images<const T>& gradient,
                                   const PruneDraw& draw, const T* weight,
                                   const WeightStrides& strides, const Images<T>& dx,
                                   SparseWorkspace& workspace, const Parallel& parallel) {
  return SpreadInput<T>(shape, draw.density, workspace)
      .run(gradient, draw, weight, strides, dx, parallel);
}

template SparseCounts spread_input_gradient(const ConvShape&, const Images<const float>&,
                                            const PruneDraw&, const float*, const WeightStrides&,
                                            const Images<float>&, SparseWorkspace&,
                                            const Parallel&);
template SparseCounts spread_input_gradient(const ConvShape&, const Images<const BFloat16Bits>&,
                                            const PruneDraw&, const BFloat16Bits*,
                                            const WeightStrides&, const Images<BFloat16Bits>&,
                                            SparseWorkspace&, const Parallel&);
template SparseCounts spread_input_gradient(const ConvShape&, const Images<const Float16Bits>&,
                                            const PruneDraw&, const Float16Bits*,
                                            const WeightStrides&, const Images<Float16Bits>&,
                                            SparseWorkspace&, const Parallel&);

}  // namespace slimgrad
