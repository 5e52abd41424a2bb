// The gradient of the weight. The survivors of a band of pixels are sorted by channel; tiles of the
// input are copied with padding (arrays/sparse/tap_tiles.h), so that a tap is a displacement that
// is the same for every survivor:
//
//   X tile     rows: padded pixels of the band
//   survivor   of gradient pixel (y', x'): offset of the input pixel at tap (0, 0)
//   tap        displacement (ty dilation_y, tx dilation_x) pixels
#include <algorithm>
#include <atomic>

#include "arrays/apply/loop_treatment.h"
#include "arrays/sparse/backward.h"
#include "arrays/sparse/channel_lists.h"
#include "arrays/sparse/copy_tiles.h"
#include "arrays/sparse/layout.h"
#include "arrays/sparse/tap_tiles.h"
#include "arrays/sparse/tile_values.h"
#include "base/stopwatch.h"
#include "kernels/sparse/sums.h"

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

// More tasks than most machines have threads, and never more than there are bands.
constexpr std::int64_t kWantedTasks = 16;

template <typename T>
class WeightGradient {
 public:
  WeightGradient(const ConvShape& shape, double density, SparseWorkspace& workspace)
      : shape_(shape),
        tiles_(shape),
        bands_(shape, tiles_.bytes_a_pixel(),
               static_cast<std::int64_t>(kWantedSurvivors / std::max(density, kSmallestDensity))),
        workspace_(workspace),
        parts_(std::clamp<std::int64_t>((kWantedTasks + num_copies() - 1) / num_copies(), 1,
                                        bands_.count())),
        slots_(at_once() ? parts_
                         : std::clamp(kMostListBytes / ChannelLists::slot_bytes(shape_, bands_),
                                      parts_, bands_.count())),
        lists_(shape_, tiles_, bands_, slots_, workspace) {
    workspace.totals.reserve(static_cast<std::size_t>(parts_ * shape.out_channels));
    workspace.dense.reserve(static_cast<std::size_t>(parts_ * num_tiles() * sums_size()));
  }

  SparseCounts run(const Images<const T>& gradient, const PruneDraw& draw, const Images<const T>& x,
                   T* dw, const WeightStrides& strides, T* bias, const Parallel& parallel) {
    Stopwatch watch;
    SparseCounts counts;
    sums_bias_ = bias != nullptr;
    const kernels::LoopTreatment treatment = loop_treatment<T>("prune", draw.treatment);
    std::atomic<std::int64_t> survivors = 0;
    const auto compress = [&](std::int64_t band, std::int64_t slot) {
      survivors.fetch_add(lists_.compress(band, slot, gradient, treatment, draw),
                          std::memory_order_relaxed);
    };
    if (at_once()) {
      Shares shares;
      parallel(parts_, [&](std::int64_t part) {
        for_bands(part, {0, bands_.count()}, [&](std::int64_t band, bool is_first) {
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
      for (std::int64_t first = 0; first < bands_.count(); first += slots_) {
        const Round round{first, std::min(slots_, bands_.count() - first)};
        parallel(round.count, [&](std::int64_t slot) { compress(first + slot, slot); });
        counts.compress_seconds += watch.lap();
        parallel(num_copies() * parts_, [&](std::int64_t task) {
          const std::int64_t part = task % parts_;
          for_bands(part, round, [&](std::int64_t band, bool is_first) {
            multiply(task / parts_, part, band, band - first, is_first, x);
          });
        });
        counts.multiply_seconds += watch.lap();
      }
    }
    parallel(shape_.groups * num_channel_blocks(),
             [&](std::int64_t block) { add_parts(block, dw, strides); });
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
  // cache, and a part needs one slot for all its bands; otherwise every band of a round has its
  // own.
  bool at_once() const { return num_copies() == 1; }
  struct Round {
    std::int64_t first, count;  // bands
  };
  // visit(band, is_first) for the bands of a part. The first round has some for every part.
  template <typename Visit>
  void for_bands(std::int64_t part, const Round& round, const Visit& visit) const {
    const std::int64_t first = round.first + part * round.count / parts_;
    const std::int64_t last = round.first + (part + 1) * round.count / parts_;
    for (std::int64_t band = first; band < last; ++band)
      visit(band, band == first && round.first == 0);
  }

  std::int64_t tile_size(const Bands::Band& band) const {
    return band.images * tiles_.size(band.rows);
  }

  void multiply(std::int64_t copy, std::int64_t part, std::int64_t index, std::int64_t slot,
                bool is_first, const Images<const T>& x) const {
    struct Buffer : Scratch<float> {};
    const Pooled<Buffer> buffer;
    const Bands::Band band = bands_[index];
    const std::int64_t group = copy / tiles_.copies();
    const std::int64_t first_tile = copy % tiles_.copies() * tiles_.copied();
    const std::int64_t last_tile = std::min(first_tile + tiles_.copied(), tiles_.count());
    float* const input =
        buffer->reserve(static_cast<std::size_t>((last_tile - first_tile) * tile_size(band)));
    TileCopy<T>(shape_, tiles_, {group, first_tile, last_tile}, tile_size(band))
        .copy(band, x, input);
    const kernels::SurvivorLists lists{.survivors = lists_.survivors(),
                                       .starts = lists_.starts(slot) + group * shape_.group_out(),
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
      for (std::int64_t s = lists_.starts(slot)[o]; s < lists_.starts(slot)[o + 1]; ++s)
        total += static_cast<double>(workspace_.values.data()[s]);
    }
  }
  T bias_of(std::int64_t o) const {
    double total = 0;
    for (std::int64_t part = 0; part < parts_; ++part)
      total += workspace_.totals.data()[part * shape_.out_channels + o];
    return from_float<T>(static_cast<float>(total));
  }

  // Some output channels of a group, whose weights lie together: with all of a tile's channels,
  // pieces of cache lines that are some Ki apart would push each other out of the cache before the
  // next tile completes them.
  static constexpr std::int64_t kAddedChannels = 8;
  std::int64_t num_channel_blocks() const {
    return (shape_.group_out() + kAddedChannels - 1) / kAddedChannels;
  }
  void add_parts(std::int64_t block, T* dw, const WeightStrides& strides) const {
    const std::int64_t group = block / num_channel_blocks();
    const std::int64_t first = block % num_channel_blocks() * kAddedChannels;
    const std::int64_t last = std::min(first + kAddedChannels, shape_.group_out());
    for (std::int64_t t = 0; t < tiles_.count(); ++t) {
      const std::int64_t tile = group * tiles_.count() + t, first_in = t * pixel_size();
      const std::int64_t count = std::min(pixel_size(), shape_.group_in() - first_in);
      std::int64_t at = first * tiles_.weights_size();
      for (std::int64_t o = first; o < last; ++o)
        for (std::int64_t ty = 0; ty < shape_.y.taps; ++ty)
          for (std::int64_t tx = 0; tx < shape_.x.taps; ++tx, at += pixel_size()) {
            float total[8 * kernels::kMaxEights];
            copy_eights(sums_of(tile, 0) + at, pixel_size(), total);
            for (std::int64_t part = 1; part < parts_; ++part)
              for (std::int64_t c = 0; c < pixel_size(); ++c)
                total[c] += sums_of(tile, part)[at + c];
            T* const to = dw + (group * shape_.group_out() + o) * strides.out +
                          first_in * strides.in + ty * strides.y + tx * strides.x;
            if (strides.in == 1)
              store_tile_row(total, count, to);
            else
              for (std::int64_t c = 0; c < count; ++c) to[c * strides.in] = from_float<T>(total[c]);
          }
    }
  }

  ConvShape shape_;
  TapTiles tiles_;
  Bands bands_;
  SparseWorkspace& workspace_;
  const std::int64_t parts_, slots_;
  ChannelLists lists_;
  bool sums_bias_ = false;
};

}  // namespace

template <typename T>
SparseCounts sparse_weight_gradient(const ConvShape& given, const Images<const T>& gradient,
                                    const PruneDraw& draw, const Images<const T>& x, T* dw,
                                    const WeightStrides& strides, T* bias,
                                    SparseWorkspace& workspace, const Parallel& parallel) {
  const bool whole = gradient.channels_first() || x.channels_first();
  return WeightGradient<T>(whole ? given : given.simplified(), draw.density, workspace)
      .run(gradient, draw, x, dw, strides, bias, parallel);
}

template SparseCounts sparse_weight_gradient(const ConvShape&, const Images<const float>&,
                                             const PruneDraw&, const Images<const float>&, float*,
                                             const WeightStrides&, float*, SparseWorkspace&,
                                             const Parallel&);
template SparseCounts sparse_weight_gradient(const ConvShape&, const Images<const BFloat16Bits>&,
                                             const PruneDraw&, const Images<const BFloat16Bits>&,
                                             BFloat16Bits*, const WeightStrides&, BFloat16Bits*,
                                             SparseWorkspace&, const Parallel&);
template SparseCounts sparse_weight_gradient(const ConvShape&, const Images<const Float16Bits>&,
                                             const PruneDraw&, const Images<const Float16Bits>&,
                                             Float16Bits*, const WeightStrides&, Float16Bits*,
                                             SparseWorkspace&, const Parallel&);

}  // namespace slimgrad
