// The gradient of the weight. The survivors of a band of pixels are sorted by channel; a tile of
// the input, some channels of every pixel that the band reaches, is copied with its padding, so
// that a tap is a displacement that is the same for every survivor:
//
//   X tile     rows: padded pixels of the band
//   survivor   of gradient pixel (y', x'): offset of the input pixel at tap (0, 0)
//   tap        displacement (ty dilation_y, tx dilation_x) pixels
//
// Taps of one kernel row lie one behind the other in the tile, so one sum does several of them:
// three taps of 32 channels are twelve vectors that one survivor adds to.
#include <algorithm>
#include <atomic>
#include <vector>

#include "codecs/sparse_backward.h"
#include "codecs/sparse_layout.h"
#include "codecs/tile_values.h"
#include "kernels/compact.h"
#include "kernels/sparse_sums.h"

namespace slimgrad {
namespace {

// Channels of the input that are summed together, for one tap.
ColumnTiles weight_tiles(const ConvShape& shape) {
  const bool taps_touch = shape.x.taps > 1 && shape.x.dilation == 1;
  return column_tiles(shape.group_in(), taps_touch ? 4 : 8);
}

template <typename T>
class WeightGradient {
 public:
  WeightGradient(const ConvShape& shape, SparseWorkspace& workspace)
      : shape_(shape),
        tiles_(weight_tiles(shape)),
        bands_(shape, tiles_.width() * static_cast<std::int64_t>(sizeof(float))),
        tile_y_(shape.y),
        tile_x_(shape.x),
        tile_columns_(tile_x_.length(shape.x, shape.x.out)),
        workspace_(workspace) {
    taps_a_sum_ = shape.x.dilation == 1
                      ? std::min<std::int64_t>(shape.x.taps, kernels::kMaxEights / tiles_.eights)
                      : 1;
    // More tasks than most machines have threads, and never more than there are bands.
    constexpr std::int64_t kWantedTasks = 16;
    const std::int64_t tiles = shape.groups * tiles_.count;
    parts_ = std::clamp<std::int64_t>((kWantedTasks + tiles - 1) / tiles, 1, bands_.count());
    band_room_ = bands_.max_pixels() * shape.out_channels +
                 static_cast<std::int64_t>(kernels::kCompactSlack);
    const auto room = static_cast<std::size_t>(bands_.count() * band_room_);
    workspace.values.reserve(room);
    workspace.offsets.reserve(room);
    workspace.begins.reserve(static_cast<std::size_t>(bands_.count() * (shape.out_channels + 1)));
    workspace.dense.reserve(static_cast<std::size_t>(parts_ * tiles * sums_size()));
  }

  SparseCounts run(const T* gradient, const PruneDraw& draw, const T* x, T* dw,
                   const WeightStrides& strides, T* bias, const Parallel& parallel) {
    Stopwatch watch;
    SparseCounts counts;
    std::atomic<std::int64_t> survivors = 0;
    parallel(bands_.count(), [&](std::int64_t band) {
      survivors.fetch_add(compress(band, gradient, draw), std::memory_order_relaxed);
    });
    counts.compress_seconds = watch.lap();
    const std::int64_t tiles = shape_.groups * tiles_.count;
    parallel(tiles * parts_, [&](std::int64_t task) { multiply(task / parts_, task % parts_, x); });
    parallel(tiles, [&](std::int64_t tile) { add_parts(tile, dw, strides); });
    if (bias != nullptr) sum_channels(bias);
    counts.multiply_seconds = watch.lap();
    counts.elements = shape_.out_pixels() * shape_.out_channels;
    counts.survivors = survivors;
    return counts;
  }

 private:
  std::int64_t pixel_size() const { return tiles_.width(); }
  std::int64_t sums_size() const { return shape_.group_out() * shape_.taps() * tiles_.width(); }
  float* sums_of(std::int64_t tile, std::int64_t part) const {
    return workspace_.dense.data() + (tile * parts_ + part) * sums_size();
  }
  std::int64_t* channel_starts(std::int64_t band) const {
    return workspace_.begins.data() + band * (shape_.out_channels + 1);
  }

  // Writes the survivors of a band by channel and in each by pixel. Returns how many.
  std::int64_t compress(std::int64_t index, const T* gradient, const PruneDraw& draw) const {
    const Bands::Band band = bands_[index];
    const std::int64_t columns = shape_.out_channels;
    // First by pixel, as they come, with the channel for an offset.
    static thread_local Scratch<float> value_buffer;
    static thread_local Scratch<std::int32_t> channel_buffer;
    static thread_local std::vector<std::int64_t> row_ends;
    float* const values = value_buffer.reserve(static_cast<std::size_t>(band_room_));
    std::int32_t* const channels = channel_buffer.reserve(static_cast<std::size_t>(band_room_));
    row_ends.clear();
    std::int64_t count = 0;
    for_pruned_rows(
        gradient, columns, band.first_pixel, band.pixels, draw,
        [&](std::int64_t, const float* row) {
          count += static_cast<std::int64_t>(kernels::compact(
              row, static_cast<std::size_t>(columns), 0, 1, values + count, channels + count));
          row_ends.push_back(count);
        });
    // Then sorted by counting.
    std::int64_t* const starts = channel_starts(index);
    std::fill(starts, starts + columns + 1, 0);
    for (std::int64_t s = 0; s < count; ++s) ++starts[channels[s] + 1];
    starts[0] = index * band_room_;
    for (std::int64_t c = 0; c < columns; ++c) starts[c + 1] += starts[c];
    static thread_local std::vector<std::int64_t> cursors;
    cursors.assign(starts, starts + columns);
    std::int64_t s = 0;
    for (std::int64_t row = 0; row < band.pixels; ++row) {
      const auto offset = static_cast<std::int32_t>(tile_pixel(band, row) * pixel_size());
      for (; s < row_ends[static_cast<std::size_t>(row)]; ++s) {
        const std::int64_t to = cursors[static_cast<std::size_t>(channels[s])]++;
        workspace_.values.data()[to] = values[s];
        workspace_.offsets.data()[to] = offset;
      }
    }
    return count;
  }

  std::int64_t tile_rows(const Bands::Band& band) const {
    return tile_y_.length(shape_.y, band.rows);
  }
  // Where the first tap of gradient pixel `row` of the band lies in the tile.
  std::int64_t tile_pixel(const Bands::Band& band, std::int64_t row) const {
    const std::int64_t x = row % shape_.x.out, image_row = row / shape_.x.out;
    const std::int64_t image = image_row / band.rows, y = image_row % band.rows;
    return (image * tile_rows(band) + y * tile_y_.tile_step) * tile_columns_ +
           x * tile_x_.tile_step;
  }

  void copy_input(const Bands::Band& band, std::int64_t tile, const T* x, float* to) const {
    const std::int64_t group = tile / tiles_.count, first = tile % tiles_.count * tiles_.width();
    const std::int64_t count = std::min(tiles_.width(), shape_.group_in() - first);
    const T* const from = x + group * shape_.group_in() + first;
    for (std::int64_t image = 0; image < band.images; ++image)
      for (std::int64_t row = 0; row < tile_rows(band); ++row) {
        const std::int64_t in_y =
            band.first_row * shape_.y.stride - shape_.y.padding + row * tile_y_.source_step;
        if (in_y < 0 || in_y >= shape_.y.in) {
          std::fill(to, to + tile_columns_ * pixel_size(), 0.0f);
          to += tile_columns_ * pixel_size();
          continue;
        }
        const T* const line = from + ((band.first_image + image) * shape_.y.in + in_y) *
                                         shape_.x.in * shape_.in_channels;
        for (std::int64_t column = 0; column < tile_columns_; ++column, to += pixel_size()) {
          const std::int64_t in_x = -shape_.x.padding + column * tile_x_.source_step;
          if (in_x < 0 || in_x >= shape_.x.in)
            std::fill(to, to + pixel_size(), 0.0f);
          else
            load_tile_row(line + in_x * shape_.in_channels, count, pixel_size(), to);
        }
      }
  }

  void multiply(std::int64_t tile, std::int64_t part, const T* x) const {
    static thread_local Scratch<float> buffer;
    static thread_local std::vector<kernels::Run> runs;
    static thread_local std::vector<kernels::Sum> sums;
    const std::int64_t first_channel = tile / tiles_.count * shape_.group_out();
    float* const totals = sums_of(tile, part);
    const std::int64_t first_band = part * bands_.count() / parts_;
    const std::int64_t last_band = (part + 1) * bands_.count() / parts_;
    for (std::int64_t b = first_band; b < last_band; ++b) {
      const Bands::Band band = bands_[b];
      const std::int64_t tile_pixels = band.images * tile_rows(band) * tile_columns_;
      float* const input = buffer.reserve(static_cast<std::size_t>(tile_pixels * pixel_size()));
      copy_input(band, tile, x, input);
      const std::int64_t* const starts = channel_starts(b);
      for (std::int64_t tx = 0; tx < shape_.x.taps; tx += taps_a_sum_) {
        const std::int64_t taps = std::min(taps_a_sum_, shape_.x.taps - tx);
        runs.clear();
        sums.clear();
        for (std::int64_t o = 0; o < shape_.group_out(); ++o)
          for (std::int64_t ty = 0; ty < shape_.y.taps; ++ty) {
            const auto run = static_cast<std::int64_t>(runs.size());
            runs.push_back(
                {starts[first_channel + o], starts[first_channel + o + 1],
                 (ty * shape_.y.dilation * tile_columns_ + tx * shape_.x.dilation) * pixel_size()});
            sums.push_back({totals + ((o * shape_.y.taps + ty) * shape_.x.taps + tx) * pixel_size(),
                            run, run + 1});
          }
        kernels::sparse_sums(static_cast<int>(taps) * tiles_.eights,
                             {workspace_.values.data(), workspace_.offsets.data()}, input, runs,
                             sums, b != first_band);
      }
    }
  }

  void add_parts(std::int64_t tile, T* dw, const WeightStrides& strides) const {
    const std::int64_t first_out = tile / tiles_.count * shape_.group_out();
    const std::int64_t first_in = tile % tiles_.count * tiles_.width();
    const std::int64_t count = std::min(tiles_.width(), shape_.group_in() - first_in);
    float* const totals = sums_of(tile, 0);
    for (std::int64_t part = 1; part < parts_; ++part) {
      const float* const more = sums_of(tile, part);
      for (std::int64_t i = 0; i < sums_size(); ++i) totals[i] += more[i];
    }
    const float* row = totals;
    for (std::int64_t o = 0; o < shape_.group_out(); ++o)
      for (std::int64_t ty = 0; ty < shape_.y.taps; ++ty)
        for (std::int64_t tx = 0; tx < shape_.x.taps; ++tx, row += pixel_size()) {
          T* const to = dw + (first_out + o) * strides.out + first_in * strides.in +
                        ty * strides.y + tx * strides.x;
          for (std::int64_t c = 0; c < count; ++c) to[c * strides.in] = from_float<T>(row[c]);
        }
  }

  void sum_channels(T* bias) const {
    for (std::int64_t o = 0; o < shape_.out_channels; ++o) {
      double total = 0;
      for (std::int64_t b = 0; b < bands_.count(); ++b)
        for (std::int64_t s = channel_starts(b)[o]; s < channel_starts(b)[o + 1]; ++s)
          total += static_cast<double>(workspace_.values.data()[s]);
      bias[o] = from_float<T>(static_cast<float>(total));
    }
  }

  ConvShape shape_;
  ColumnTiles tiles_;
  Bands bands_;
  TileAxis tile_y_, tile_x_;
  std::int64_t tile_columns_;
  SparseWorkspace& workspace_;
  std::int64_t taps_a_sum_, parts_, band_room_;
};

}  // namespace

template <typename T>
SparseCounts sparse_weight_gradient(const ConvShape& shape, const T* gradient,
                                    const PruneDraw& draw, const T* x, T* dw,
                                    const WeightStrides& strides, T* bias,
                                    SparseWorkspace& workspace, const Parallel& parallel) {
  return WeightGradient<T>(shape.simplified(), workspace)
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
