// The gradient of the weight. The survivors of a band of pixels are sorted by channel; a tile of
// the input, some channels of every pixel that the band reaches, is copied with its padding, so
// that a tap is a displacement that is the same for every survivor:
//
//   X tile     rows: padded pixels of the band
//   survivor   of gradient pixel (y', x'): offset of the input pixel at tap (0, 0)
//   tap        displacement (ty dilation_y, tx dilation_x) pixels
//
// Taps of one kernel row lie one behind the other in the tile and its rows have a fixed distance,
// so one survivor adds to several taps at once: with a 3x3 kernel and tiles of eight channels to
// nine vectors. Tiles that narrow fit the first-level cache for hundreds of pixels. They are copied
// several at a time, in order that whole cache lines of the input are used.
#include <algorithm>
#include <atomic>
#include <vector>

#include "codecs/sparse_backward.h"
#include "codecs/sparse_layout.h"
#include "codecs/sum_lists.h"
#include "codecs/tile_values.h"
#include "kernels/compact_columns.h"
#include "kernels/sparse_sums.h"

namespace slimgrad {
namespace {

// What one survivor adds to: some taps of some channels.
struct TapSums {
  ColumnTiles tiles;     // channels of the input
  std::int64_t columns;  // taps of a kernel row
  std::int64_t rows;     // of the kernel

  explicit TapSums(const ConvShape& shape) {
    const std::int64_t touching = shape.x.dilation == 1 ? shape.x.taps : 1;
    constexpr std::int64_t kMost = kernels::kMaxEights, kWidest = 8;
    rows = std::min<std::int64_t>(shape.y.taps, kernels::kMaxSumRows);
    const std::int64_t eights = std::clamp<std::int64_t>(kMost / (touching * rows), 1, kWidest);
    tiles = column_tiles(shape.group_in(), static_cast<int>(eights));
    columns = std::min(touching, kMost / tiles.eights);
    rows = std::min(rows, kMost / (columns * tiles.eights));
  }
};

template <typename T>
class WeightGradient {
 public:
  WeightGradient(const ConvShape& shape, double density, SparseWorkspace& workspace)
      : shape_(shape),
        sums_(shape),
        bands_(shape, pixel_size() * std::int64_t{sizeof(float)},
               static_cast<std::int64_t>(kWantedSurvivors / std::max(density, kSmallestDensity))),
        tile_y_(shape.y),
        tile_x_(shape.x),
        tile_columns_(tile_x_.length(shape.x, shape.x.out)),
        workspace_(workspace) {
    constexpr std::int64_t kCopiedColumns = 32;
    copied_tiles_ = std::clamp<std::int64_t>(kCopiedColumns / pixel_size(), 1, sums_.tiles.count);
    // More tasks than most machines have threads, and never more than there are bands.
    constexpr std::int64_t kWantedTasks = 16;
    parts_ = std::clamp<std::int64_t>((kWantedTasks + num_copies() - 1) / num_copies(), 1,
                                      bands_.count());
    const auto room = static_cast<std::size_t>(bands_.count() * band_room());
    workspace.values.reserve(room);
    workspace.offsets.reserve(room);
    workspace.marks.reserve(static_cast<std::size_t>(bands_.count() * (shape.out_channels + 1)));
    workspace.dense.reserve(static_cast<std::size_t>(parts_ * num_tiles() * sums_size()));
  }

  SparseCounts run(const T* gradient, const PruneDraw& draw, const T* x, T* dw,
                   const WeightStrides& strides, T* bias, const Parallel& parallel) {
    Stopwatch watch;
    SparseCounts counts;
    const kernels::Plan plan = pruning_plan<T>(draw);
    std::atomic<std::int64_t> survivors = 0;
    parallel(bands_.count(), [&](std::int64_t band) {
      survivors.fetch_add(compress(band, gradient, plan), std::memory_order_relaxed);
    });
    counts.compress_seconds = watch.lap();
    parallel(num_copies() * parts_,
             [&](std::int64_t task) { multiply(task / parts_, task % parts_, x); });
    parallel(num_tiles(), [&](std::int64_t tile) { add_parts(tile, dw, strides); });
    if (bias != nullptr)
      parallel(shape_.out_channels, [&](std::int64_t o) { sum_channel(o, bias); });
    counts.multiply_seconds = watch.lap();
    counts.elements = shape_.out_pixels() * shape_.out_channels;
    counts.survivors = survivors;
    return counts;
  }

 private:
  // Tiles of all groups are counted in one row; so are their copies, of several tiles each.
  std::int64_t num_tiles() const { return shape_.groups * sums_.tiles.count; }
  std::int64_t copies_a_group() const {
    return (sums_.tiles.count + copied_tiles_ - 1) / copied_tiles_;
  }
  std::int64_t num_copies() const { return shape_.groups * copies_a_group(); }
  std::int64_t pixel_size() const { return sums_.tiles.width(); }
  std::int64_t sums_size() const { return shape_.group_out() * shape_.taps() * pixel_size(); }
  float* sums_of(std::int64_t tile, std::int64_t part) const {
    return workspace_.dense.data() + (tile * parts_ + part) * sums_size();
  }
  std::int64_t* channel_starts(std::int64_t band) const {
    return workspace_.marks.data() + band * (shape_.out_channels + 1);
  }

  // Writes the survivors of a band by channel and in each by pixel. Returns how many.
  std::int64_t compress(std::int64_t index, const T* gradient, const kernels::Plan& plan) const {
    const Bands::Band band = bands_[index];
    const std::int64_t columns = shape_.out_channels;
    struct Room {
      Scratch<float> values;
      Scratch<std::int32_t> offsets, counts, rows;
    };
    Room& room = per_thread<Room>();
    const auto pixels = static_cast<std::size_t>(band.pixels);
    const std::int64_t at_once = std::min(columns, kernels::kMostColumns);
    const std::size_t stride = list_stride(pixels);
    const std::size_t size = static_cast<std::size_t>(at_once) * stride;
    const kernels::ListRoom lists{.stride = static_cast<std::int64_t>(stride),
                                  .values = room.values.reserve(size),
                                  .offsets = room.offsets.reserve(size),
                                  .counts = room.counts.reserve(static_cast<std::size_t>(at_once))};
    const std::int32_t* const offsets = pixel_offsets(band, room.rows.reserve(pixels));
    const std::int64_t first = band.first_pixel * columns;
    std::int64_t* const starts = channel_starts(index);
    starts[0] = index * band_room();
    for (std::int64_t column = 0; column < columns; column += at_once)
      kernels::compact_columns<T>(
          plan, {gradient + first, band.pixels, columns, static_cast<std::uint64_t>(first)},
          {.first_column = column,
           .num_columns = std::min(at_once, columns - column),
           .row_offsets = offsets,
           .room = lists,
           .values = workspace_.values.data(),
           .offsets = workspace_.offsets.data(),
           .starts = starts + column});
    return starts[columns] - starts[0];
  }
  // For the survivors of a band.
  std::int64_t band_room() const {
    return bands_.max_pixels() * shape_.out_channels +
           static_cast<std::int64_t>(kernels::kCompactSlack);
  }

  // Room for a list of so many survivors: an odd number of cache lines, because lists a power of
  // two apart would get into each other's way in the cache.
  static std::size_t list_stride(std::size_t size) {
    constexpr std::size_t kLine = 64 / sizeof(float);
    return ((size + kernels::kCompactSlack + kLine - 1) / kLine | 1) * kLine;
  }

  // Where the first taps of the band's gradient pixels lie in the tile.
  const std::int32_t* pixel_offsets(const Bands::Band& band, std::int32_t* offsets) const {
    std::int32_t* next = offsets;
    for (std::int64_t row = 0; row < band.pixels; row += shape_.x.out) {
      std::int64_t offset = tile_pixel(band, row) * pixel_size();
      for (std::int64_t x = 0; x < shape_.x.out; ++x, offset += tile_x_.tile_step * pixel_size())
        *next++ = static_cast<std::int32_t>(offset);
    }
    return offsets;
  }

  std::int64_t tile_rows(const Bands::Band& band) const {
    return tile_y_.length(shape_.y, band.rows);
  }
  std::int64_t tile_size(const Bands::Band& band) const {
    return band.images * tile_rows(band) * tile_columns_ * pixel_size();
  }
  // Where the first tap of a gradient pixel, the first of its line, lies in the tile.
  std::int64_t tile_pixel(const Bands::Band& band, std::int64_t pixel) const {
    const std::int64_t line = pixel / shape_.x.out;
    const std::int64_t image = line / band.rows, y = line % band.rows;
    return (image * tile_rows(band) + y * tile_y_.tile_step) * tile_columns_;
  }

  // The input pixels of a band, for the tiles [first_tile, last_tile) of a group, one tile behind
  // the other.
  void copy_input(const Bands::Band& band, std::int64_t group, std::int64_t first_tile,
                  std::int64_t last_tile, const T* x, float* to) const {
    const std::int64_t size = tile_size(band), width = pixel_size();
    const std::int64_t pixel_channels = shape_.in_channels, channels = shape_.group_in();
    for (std::int64_t image = 0; image < band.images; ++image)
      for (std::int64_t row = 0; row < tile_rows(band); ++row) {
        const std::int64_t in_y =
            band.first_row * shape_.y.stride - shape_.y.padding + row * tile_y_.source_step;
        const bool outside = in_y < 0 || in_y >= shape_.y.in;
        const T* const line = x + group * channels +
                              ((band.first_image + image) * shape_.y.in + (outside ? 0 : in_y)) *
                                  shape_.x.in * pixel_channels;
        for (std::int64_t column = 0; column < tile_columns_; ++column, to += width) {
          const std::int64_t in_x = -shape_.x.padding + column * tile_x_.source_step;
          const bool is_padding = outside || in_x < 0 || in_x >= shape_.x.in;
          const T* const pixel = line + (is_padding ? 0 : in_x) * pixel_channels;
          const T* from = pixel + first_tile * width;
          prefetch(from + kPixelsAhead * pixel_channels, (last_tile - first_tile) * width);
          float* tile = to;
          if constexpr (std::is_same_v<T, float>) {
            if (width == 8 && !is_padding && last_tile * width <= channels) {
              for (std::int64_t t = first_tile; t < last_tile; ++t, from += 8, tile += size)
                copy_eights(from, 8, tile);
              continue;
            }
          }
          for (std::int64_t t = first_tile; t < last_tile; ++t, from += width, tile += size)
            load_tile_row(from, is_padding ? 0 : std::min(width, channels - t * width), width,
                          tile);
        }
      }
  }
  // Some channels of every pixel: the CPU does not see by itself that it is the next ones' turn.
  static constexpr std::int64_t kPixelsAhead = 8;
  static void prefetch(const T* address, std::int64_t count) {
    constexpr std::int64_t kLine = 64 / sizeof(T);
    for (std::int64_t i = 0; i < count; i += kLine) __builtin_prefetch(address + i);
  }

  void multiply(std::int64_t copy, std::int64_t part, const T* x) const {
    struct Buffer : Scratch<float> {};
    Buffer& buffer = per_thread<Buffer>();
    SumLists& lists = per_thread<SumLists>();
    const std::int64_t group = copy / copies_a_group();
    const std::int64_t first_tile = copy % copies_a_group() * copied_tiles_;
    const std::int64_t last_tile = std::min(first_tile + copied_tiles_, sums_.tiles.count);
    const std::int64_t first_band = part * bands_.count() / parts_;
    const std::int64_t last_band = (part + 1) * bands_.count() / parts_;
    for (std::int64_t b = first_band; b < last_band; ++b) {
      const Bands::Band band = bands_[b];
      float* const input =
          buffer.reserve(static_cast<std::size_t>((last_tile - first_tile) * tile_size(band)));
      copy_input(band, group, first_tile, last_tile, x, input);
      for (std::int64_t ty = 0; ty < shape_.y.taps; ty += sums_.rows)
        for (std::int64_t tx = 0; tx < shape_.x.taps; tx += sums_.columns) {
          const kernels::SumShape sum_shape = list_sums(b, group, ty, tx, lists);
          for (std::int64_t tile = first_tile; tile < last_tile; ++tile)
            kernels::sparse_sums(sum_shape, {workspace_.values.data(), workspace_.offsets.data()},
                                 input + (tile - first_tile) * tile_size(band), lists.runs,
                                 lists.sums, sums_of(group * sums_.tiles.count + tile, part),
                                 b != first_band);
        }
    }
  }

  // A sum for every output channel of the group, of the taps from (ty, tx) on.
  kernels::SumShape list_sums(std::int64_t band, std::int64_t group, std::int64_t ty,
                              std::int64_t tx, SumLists& lists) const {
    const std::int64_t* const starts = channel_starts(band) + group * shape_.group_out();
    const std::int64_t row_stride = shape_.y.dilation * tile_columns_ * pixel_size();
    const std::int64_t displacement = ty * row_stride + tx * shape_.x.dilation * pixel_size();
    const std::int64_t channels = shape_.group_out(), sum_size = shape_.taps() * pixel_size();
    const std::int64_t first_sum = (ty * shape_.x.taps + tx) * pixel_size();
    lists.runs.resize(static_cast<std::size_t>(channels));
    lists.sums.resize(static_cast<std::size_t>(channels));
    kernels::Run* const runs = lists.runs.data();
    kernels::Sum* const sums = lists.sums.data();
    for (std::int64_t o = 0; o < channels; ++o) {
      runs[o] = {starts[o], starts[o + 1], displacement};
      sums[o] = {first_sum + o * sum_size, o, o + 1};
    }
    const std::int64_t rows = std::min(sums_.rows, shape_.y.taps - ty);
    const std::int64_t columns = std::min(sums_.columns, shape_.x.taps - tx);
    return {.eights = static_cast<int>(columns) * sums_.tiles.eights,
            .rows = static_cast<int>(rows),
            .dense_stride = row_stride,
            .out_stride = shape_.x.taps * pixel_size()};
  }

  void add_parts(std::int64_t tile, T* dw, const WeightStrides& strides) const {
    const std::int64_t first_out = tile / sums_.tiles.count * shape_.group_out();
    const std::int64_t first_in = tile % sums_.tiles.count * pixel_size();
    const std::int64_t count = std::min(pixel_size(), shape_.group_in() - first_in);
    std::int64_t at = 0;
    for (std::int64_t o = 0; o < shape_.group_out(); ++o)
      for (std::int64_t ty = 0; ty < shape_.y.taps; ++ty)
        for (std::int64_t tx = 0; tx < shape_.x.taps; ++tx, at += pixel_size()) {
          float total[8 * kernels::kMaxEights];
          copy_eights(sums_of(tile, 0) + at, pixel_size(), total);
          for (std::int64_t part = 1; part < parts_; ++part)
            for (std::int64_t c = 0; c < pixel_size(); ++c) total[c] += sums_of(tile, part)[at + c];
          T* const to = dw + (first_out + o) * strides.out + first_in * strides.in +
                        ty * strides.y + tx * strides.x;
          if (strides.in == 1)
            store_tile_row(total, count, to);
          else
            for (std::int64_t c = 0; c < count; ++c) to[c * strides.in] = from_float<T>(total[c]);
        }
  }

  void sum_channel(std::int64_t o, T* bias) const {
    double total = 0;
    for (std::int64_t b = 0; b < bands_.count(); ++b)
      for (std::int64_t s = channel_starts(b)[o]; s < channel_starts(b)[o + 1]; ++s)
        total += static_cast<double>(workspace_.values.data()[s]);
    bias[o] = from_float<T>(static_cast<float>(total));
  }

  ConvShape shape_;
  TapSums sums_;
  Bands bands_;
  TileAxis tile_y_, tile_x_;
  std::int64_t tile_columns_;
  SparseWorkspace& workspace_;
  std::int64_t copied_tiles_, parts_;
};

}  // namespace

template <typename T>
SparseCounts sparse_weight_gradient(const ConvShape& shape, const T* gradient,
                                    const PruneDraw& draw, const T* x, T* dw,
                                    const WeightStrides& strides, T* bias,
                                    SparseWorkspace& workspace, const Parallel& parallel) {
  return WeightGradient<T>(shape.simplified(), draw.density, workspace)
      .run(gradient, draw, x, dw, strides, bias, parallel);
}

template SparseCounts sparse_weight_gradient(const ConvShape&, const float*, const PruneDraw&,
                                             const float*, float*, const WeightStrides&, float*,
                                             SparseWorkspace&, const Parallel&);
template SparseCounts sparse_weight_gradient(const ConvShape&, const BFloat16Bits*,
                                             const PruneDraw&, const BFloat16Bits*, BFloat16Bits*,
                                             const WeightStrides&, BFloat16Bits*, SparseWorkspace&,
                                             const Parallel&);

}  // namespace slimgrad
