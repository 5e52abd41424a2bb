// The gradient of the weight. The survivors of a band of pixels are sorted by channel; tiles of the
// input are copied with padding (codecs/tap_tiles.h), so that a tap is a displacement that is the
// same for every survivor:
//
//   X tile     rows: padded pixels of the band
//   survivor   of gradient pixel (y', x'): offset of the input pixel at tap (0, 0)
//   tap        displacement (ty dilation_y, tx dilation_x) pixels
#include <algorithm>
#include <atomic>

#include "codecs/copy_tiles.h"
#include "codecs/sparse_backward.h"
#include "codecs/sparse_layout.h"
#include "codecs/tap_tiles.h"
#include "codecs/tile_values.h"
#include "kernels/compact_columns.h"
#include "kernels/sparse_sums.h"

namespace slimgrad {
namespace {

// Which part of a time that several threads spent on two things went to the first.
class Shares {
 public:
  void add_first(double seconds) { first_.fetch_add(seconds, std::memory_order_relaxed); }
  void add_second(double seconds) { second_.fetch_add(seconds, std::memory_order_relaxed); }
  double first() const {
    const double both = first_ + second_;
    return both > 0 ? first_ / both : 0;
  }

 private:
  std::atomic<double> first_ = 0, second_ = 0;
};

template <typename T>
class WeightGradient {
 public:
  WeightGradient(const ConvShape& shape, double density, SparseWorkspace& workspace)
      : shape_(shape),
        tiles_(shape),
        bands_(shape, tiles_.bytes_a_pixel(),
               static_cast<std::int64_t>(kWantedSurvivors / std::max(density, kSmallestDensity))),
        workspace_(workspace) {
    constexpr double kManySurvivors = 0.14;
    many_ = density > kManySurvivors;
    // More tasks than most machines have threads, and never more than there are bands.
    constexpr std::int64_t kWantedTasks = 16;
    parts_ = std::clamp<std::int64_t>((kWantedTasks + num_copies() - 1) / num_copies(), 1,
                                      bands_.count());
    const std::int64_t slots = at_once() ? parts_ : bands_.count();
    const auto room = static_cast<std::size_t>(slots * band_room());
    workspace.values.reserve(room);
    workspace.offsets.reserve(room);
    workspace.marks.reserve(static_cast<std::size_t>(slots * (shape.out_channels + 1)));
    workspace.totals.reserve(static_cast<std::size_t>(parts_ * shape.out_channels));
    workspace.dense.reserve(static_cast<std::size_t>(parts_ * num_tiles() * sums_size()));
  }

  SparseCounts run(const T* gradient, const PruneDraw& draw, const T* x, T* dw,
                   const WeightStrides& strides, T* bias, const Parallel& parallel) {
    Stopwatch watch;
    SparseCounts counts;
    sums_bias_ = bias != nullptr;
    const kernels::Plan plan = pruning_plan<T>(draw);
    std::atomic<std::int64_t> survivors = 0;
    const auto compress = [&](std::int64_t band, std::int64_t slot) {
      survivors.fetch_add(compress_band(band, slot, gradient, plan), std::memory_order_relaxed);
    };
    if (at_once()) {
      Shares shares;
      parallel(parts_, [&](std::int64_t part) {
        for_bands(part, [&](std::int64_t band, bool is_first) {
          Stopwatch lap;
          compress(band, part);
          shares.add_first(lap.lap());
          multiply(0, part, band, part, is_first, x);
          shares.add_second(lap.lap());
        });
      });
      const double seconds = watch.lap();
      counts.compress_seconds = seconds * shares.first();
      counts.multiply_seconds = seconds - counts.compress_seconds;
    } else {
      parallel(bands_.count(), [&](std::int64_t band) { compress(band, band); });
      counts.compress_seconds = watch.lap();
      parallel(num_copies() * parts_, [&](std::int64_t task) {
        const std::int64_t part = task % parts_;
        for_bands(part, [&](std::int64_t band, bool is_first) {
          multiply(task / parts_, part, band, band, is_first, x);
        });
      });
    }
    parallel(num_tiles(), [&](std::int64_t tile) { add_parts(tile, dw, strides); });
    if (bias != nullptr)
      for (std::int64_t o = 0; o < shape_.out_channels; ++o) bias[o] = bias_of(o);
    counts.multiply_seconds += watch.lap();
    counts.elements = shape_.out_pixels() * shape_.out_channels;
    counts.survivors = survivors;
    return counts;
  }

 private:
  // Tiles of all groups are counted in one row; so are their copies, of several tiles each.
  std::int64_t num_tiles() const { return shape_.groups * tiles_.count(); }
  std::int64_t num_copies() const { return shape_.groups * tiles_.copies(); }
  std::int64_t pixel_size() const { return tiles_.pixel_size(); }
  std::int64_t sums_size() const { return shape_.group_out() * tiles_.weights_size(); }
  float* sums_of(std::int64_t tile, std::int64_t part) const {
    return workspace_.dense.data() + (tile * parts_ + part) * sums_size();
  }
  // Lists of a band lie in a slot. If they are used once, it is multiplied while they are in the
  // cache, and a part needs one slot for all its bands; otherwise every band has its own.
  bool at_once() const { return num_copies() == 1; }
  std::int64_t* channel_starts(std::int64_t slot) const {
    return workspace_.marks.data() + slot * (shape_.out_channels + 1);
  }
  // visit(band, is_first) for the bands of a part.
  template <typename Visit>
  void for_bands(std::int64_t part, const Visit& visit) const {
    const std::int64_t first = part * bands_.count() / parts_;
    const std::int64_t last = (part + 1) * bands_.count() / parts_;
    for (std::int64_t band = first; band < last; ++band) visit(band, band == first);
  }

  // Writes the survivors of a band by channel and in each by pixel. Returns how many.
  std::int64_t compress_band(std::int64_t index, std::int64_t slot, const T* gradient,
                             const kernels::Plan& plan) const {
    const Bands::Band band = bands_[index];
    const std::int64_t columns = shape_.out_channels, first = band.first_pixel * columns;
    struct Room {
      Scratch<float> values;
      Scratch<std::int32_t> offsets, rows;
      Scratch<std::int64_t> ends;
    };
    Room& room = per_thread<Room>();
    const std::int64_t step = std::min(columns, kernels::kMostColumns);
    const std::int64_t stride = list_stride(band.pixels);
    const auto size = static_cast<std::size_t>(step * stride);
    const kernels::ListRoom lists{.stride = stride,
                                  .values = room.values.reserve(size),
                                  .offsets = room.offsets.reserve(size),
                                  .ends = room.ends.reserve(static_cast<std::size_t>(step))};
    std::int32_t* const offsets = room.rows.reserve(static_cast<std::size_t>(band.pixels));
    find_offsets(band, offsets);
    std::int64_t* const starts = channel_starts(slot);
    starts[0] = slot * band_room();
    for (std::int64_t column = 0; column < columns; column += step)
      kernels::compact_columns<T>(
          plan, {gradient + first, band.pixels, columns, static_cast<std::uint64_t>(first)},
          {.first_column = column,
           .num_columns = std::min(step, columns - column),
           .row_offsets = offsets,
           .many = many_,
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
  static std::int64_t list_stride(std::int64_t size) {
    constexpr std::int64_t kLine = 64 / sizeof(float);
    const auto most = size + static_cast<std::int64_t>(kernels::kCompactSlack);
    return ((most + kLine - 1) / kLine | 1) * kLine;
  }

  // Where the first taps of the band's gradient pixels lie in the tile.
  void find_offsets(const Bands::Band& band, std::int32_t* offsets) const {
    for (std::int64_t image = 0; image < band.images; ++image)
      for (std::int64_t row = 0; row < band.rows; ++row) {
        std::int64_t offset = image * tiles_.size(band.rows) + row * tiles_.line_step();
        for (std::int64_t x = 0; x < shape_.x.out; ++x, offset += tiles_.pixel_step())
          *offsets++ = static_cast<std::int32_t>(offset);
      }
  }

  std::int64_t tile_size(const Bands::Band& band) const {
    return band.images * tiles_.size(band.rows);
  }

  void multiply(std::int64_t copy, std::int64_t part, std::int64_t index, std::int64_t slot,
                bool is_first, const T* x) const {
    struct Buffer : Scratch<float> {};
    const Bands::Band band = bands_[index];
    const std::int64_t group = copy / tiles_.copies();
    const std::int64_t first_tile = copy % tiles_.copies() * tiles_.copied();
    const std::int64_t last_tile = std::min(first_tile + tiles_.copied(), tiles_.count());
    float* const input = per_thread<Buffer>().reserve(
        static_cast<std::size_t>((last_tile - first_tile) * tile_size(band)));
    TileCopy<T>(shape_, tiles_, {group, first_tile, last_tile}, tile_size(band))
        .copy(band, x, input);
    const kernels::SurvivorLists lists{
        .survivors = {workspace_.values.data(), workspace_.offsets.data()},
        .marks = channel_starts(slot) + group * shape_.group_out(),
        .count = shape_.group_out()};
    tiles_.for_taps([&](const TapTiles::Taps& taps) {
      const kernels::SumShape sum_shape{.eights = taps.eights,
                                        .rows = taps.rows,
                                        .dense_stride = taps.tile_stride,
                                        .out_stride = taps.weights_stride};
      for (std::int64_t tile = first_tile; tile < last_tile; ++tile)
        kernels::sum_lists(sum_shape, lists,
                           input + (tile - first_tile) * tile_size(band) + taps.tile_offset,
                           sums_of(group * tiles_.count() + tile, part) + taps.weights_offset,
                           tiles_.weights_size(), !is_first);
    });
    if (sums_bias_ && first_tile == 0) sum_channels(group, part, slot, is_first);
  }

  // For the bias.
  void sum_channels(std::int64_t group, std::int64_t part, std::int64_t slot, bool is_first) const {
    for (std::int64_t c = 0; c < shape_.group_out(); ++c) {
      const std::int64_t o = group * shape_.group_out() + c;
      double& total = workspace_.totals.data()[part * shape_.out_channels + o];
      if (is_first) total = 0;
      for (std::int64_t s = channel_starts(slot)[o]; s < channel_starts(slot)[o + 1]; ++s)
        total += static_cast<double>(workspace_.values.data()[s]);
    }
  }
  T bias_of(std::int64_t o) const {
    double total = 0;
    for (std::int64_t part = 0; part < parts_; ++part)
      total += workspace_.totals.data()[part * shape_.out_channels + o];
    return from_float<T>(static_cast<float>(total));
  }

  void add_parts(std::int64_t tile, T* dw, const WeightStrides& strides) const {
    const std::int64_t first_out = tile / tiles_.count() * shape_.group_out();
    const std::int64_t first_in = tile % tiles_.count() * pixel_size();
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

  ConvShape shape_;
  TapTiles tiles_;
  Bands bands_;
  SparseWorkspace& workspace_;
  std::int64_t parts_;
  bool many_;
  bool sums_bias_ = false;
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
