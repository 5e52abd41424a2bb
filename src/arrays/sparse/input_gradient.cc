// The gradient of the input. Every input pixel gathers from the gradient pixels that it reached in
// forward. The survivors of neighbouring gradient pixels of one row lie one behind the other, and
// their taps are neighbours too, so that all taps of a kernel row are one stretch of survivors:
//
//   W tile         rows (ty, tx, o) of one column tile
//   survivor       of gradient pixel x', channel o: offset (o - stride x' O) rows
//   input pixel x  tap tx = x + padding - stride x', so
//                  displacement (ty taps_x + x + padding) O rows
//
// with O channels in a block. The taps of a dilated row are no such stretch: each is a pass of its
// own, tap tx = (x + padding - stride x') / dilation, displacement (ty taps_x + x + padding -
// tx (dilation - 1)) O rows.
//
// A row of W is used once, so that what counts is the cache that it comes from. Channels are cut
// into blocks, and the rows of the kernel may be taken one by one, so that few rows of W are used
// for many pixels; but every pass adds to the sums of every pixel once more. What is cheapest
// depends on the sparsity.
//
// With few input channels (16 and less) it would take up to 0.45 less time to add each gradient
// pixel to the pixels that it reached, because a survivor is then met once for all taps. But there
// torch's dense product is faster still: over the backward products of the networks of
// bench/layer_shapes.py, each done the better way, that second way gained at most 1 % (AMD Zen 5,
// two threads, sparsities 0.6 to 0.95, without the input gradient of a first layer, which no
// training step asks for), so it is not here.
#include <algorithm>
#include <vector>

#include "arrays/sparse/backward.h"
#include "arrays/sparse/layout.h"
#include "arrays/sparse/pixel_lists.h"
#include "arrays/sparse/tile_values.h"
#include "base/stopwatch.h"
#include "kernels/sparse/sums.h"

namespace slimgrad {
namespace {

// The pixels that one task compresses, if they are not too large.
constexpr std::int64_t kCompressedPixels = 512;

// One tap of one output channel: `count` input channels, then zeros up to `width`.
template <typename T>
void load_weights(const T* from, std::int64_t step, std::int64_t count, std::int64_t width,
                  float* to) {
  if (step == 1) return load_tile_row(from, count, width, to);
  for (std::int64_t c = 0; c < count; ++c) to[c] = to_float(from[c * step]);
  std::fill(to + count, to + width, 0.0f);
}

// The taps of a row that one pass has.
std::int64_t taps_a_pass(const ConvAxis& axis) { return axis.dilation == 1 ? axis.taps : 1; }

// One block after the other, each with all rows of the kernel at once or one at a time.
struct Passes {
  std::int64_t channels;  // a block
  bool split_rows;
};

Passes cheapest_passes(const ConvShape& shape, const ColumnTiles& tiles, double density) {
  constexpr double kSumNanoseconds = 10, kLineNanoseconds = 5;
  Passes best{};
  double lowest = 0;
  for (const bool split : {false, true}) {
    const std::int64_t lines = split ? 1 : shape.y.taps;
    const double fixed = kSumNanoseconds + kLineNanoseconds * static_cast<double>(lines);
    for (std::int64_t count = 1; count <= shape.group_out(); ++count) {
      const std::int64_t channels = (shape.group_out() + count - 1) / count;
      const std::int64_t rows = lines * taps_a_pass(shape.x) * channels;
      const double survivors = static_cast<double>(rows) * std::max(density, kSmallestDensity);
      const double cost =
          tiles.eights * row_cost(rows * tiles.width() * std::int64_t{sizeof(float)}) +
          fixed / survivors;
      if (lowest == 0 || cost < lowest) {
        lowest = cost;
        best = {channels, split};
      }
      if (channels <= 8) break;
    }
  }
  return best;
}

// The gradient pixels of a row that reached each input pixel of a row through the taps of a pass,
// of which `first_tap` is the first. Displacements are in rows of a block.
std::vector<kernels::Reach> find_reaches(const ConvAxis& axis, std::int64_t first_tap) {
  const std::int64_t taps = taps_a_pass(axis);
  std::vector<kernels::Reach> reaches;
  for (std::int64_t x = 0; x < axis.in; ++x) {
    const std::int64_t rightmost = x + axis.padding - first_tap * axis.dilation;
    const std::int64_t leftmost = std::max<std::int64_t>(0, rightmost - (taps - 1));
    const std::int64_t first = (leftmost + axis.stride - 1) / axis.stride;
    const std::int64_t last = rightmost < 0 ? 0 : std::min(rightmost / axis.stride + 1, axis.out);
    if (first < last)
      reaches.push_back({first, last, rightmost + first_tap});
    else
      reaches.push_back({0, 0, 0});
  }
  return reaches;
}

template <typename T>
class InputGradient {
 public:
  InputGradient(const ConvShape& shape, double density, SparseWorkspace& workspace)
      : shape_(shape),
        tiles_(column_tiles(shape.group_in(), kMaxInputEights)),
        passes_(cheapest_passes(shape, tiles_, density)),
        bands_(shape, tiles_.width() * std::int64_t{sizeof(float)}, kCompressedPixels),
        lists_(shape, bands_, passes_.channels,
               // One pixel at a time needs no steps from pixel to pixel.
               {.channel_step = tiles_.width(),
                .pixel_step_a_channel = shape.is_linear() ? 0 : -shape.x.stride * tiles_.width()},
               workspace),
        weights_(workspace.dense.reserve(
            static_cast<std::size_t>(shape.groups * tiles_.count * tile_size()))) {
    for (std::int64_t tap = 0; tap < shape.x.taps; tap += taps_a_pass(shape.x))
      reaches_.push_back(find_reaches(shape.x, tap));
  }

  SparseCounts run(const Images<const T>& gradient, const PruneDraw& draw, const T* weight,
                   const WeightStrides& strides, const Images<T>& dx, const Parallel& parallel) {
    Stopwatch watch;
    SparseCounts counts;
    parallel(shape_.groups * tiles_.count,
             [&](std::int64_t tile) { pack_weight(tile, weight, strides); });
    counts.elements = shape_.out_pixels() * shape_.out_channels;
    counts.survivors = lists_.compress(gradient, draw, parallel);
    counts.compress_seconds = watch.lap();
    // Neighbouring tasks share a tile of the weight.
    const std::int64_t chunks = num_chunks();
    parallel(shape_.groups * tiles_.count * chunks,
             [&](std::int64_t task) { multiply(task / chunks, task % chunks, dx); });
    counts.multiply_seconds = watch.lap();
    return counts;
  }

 private:
  // Rows of all blocks of a group.
  std::int64_t tile_size() const { return shape_.taps() * shape_.group_out() * tiles_.width(); }
  // Tiles of all groups are counted in one row. Within a tile: block, tap, channel.
  float* weight_tile(std::int64_t tile) const { return weights_ + tile * tile_size(); }
  std::int64_t block_start(const ChannelBlock& block) const {
    return block.first_in_group * shape_.taps() * tiles_.width();
  }

  void pack_weight(std::int64_t tile, const T* weight, const WeightStrides& strides) const {
    const std::int64_t group = tile / tiles_.count, width = tiles_.width();
    const std::int64_t first = tile % tiles_.count * width;
    lists_.for_blocks(group, [&](std::size_t, const ChannelBlock& block) {
      float* row = weight_tile(tile) + block_start(block);
      for (std::int64_t ty = 0; ty < shape_.y.taps; ++ty)
        for (std::int64_t tx = 0; tx < shape_.x.taps; ++tx)
          for (std::int64_t o = 0; o < block.channels; ++o, row += width)
            load_weights(weight + (block.first_channel + o) * strides.out + ty * strides.y +
                             tx * strides.x + first * strides.in,
                         strides.in, std::min(width, shape_.group_in() - first), width, row);
    });
  }

  // Pixels that are summed by one task: enough to share a tile of the weight, few enough that their
  // sums stay in the cache from block to block. A layer that looks at one pixel at a time takes
  // bands, which are one row of lists; others take pixel rows of the input.
  std::int64_t rows_a_chunk() const {
    constexpr std::int64_t kPixels = 256;
    return std::max<std::int64_t>(1, kPixels / shape_.x.in);
  }
  std::int64_t num_chunks() const {
    if (shape_.is_linear()) return bands_.count();
    return (shape_.images * shape_.y.in + rows_a_chunk() - 1) / rows_a_chunk();
  }
  struct Chunk {
    std::int64_t first_pixel, pixels;  // of the input
  };
  Chunk chunk(std::int64_t index) const {
    if (shape_.is_linear()) return {bands_[index].first_pixel, bands_[index].pixels};
    const std::int64_t first = index * rows_a_chunk();
    const std::int64_t rows = std::min(rows_a_chunk(), shape_.images * shape_.y.in - first);
    return {first * shape_.x.in, rows * shape_.x.in};
  }

  // The passes over one group.
  std::int64_t num_passes() const {
    const auto blocks = static_cast<std::int64_t>(lists_.blocks().size()) / shape_.groups;
    return blocks * (passes_.split_rows ? shape_.y.taps : 1) *
           static_cast<std::int64_t>(reaches_.size());
  }

  struct Room {
    Scratch<float> totals;
    std::vector<kernels::ListLine> lines;
    std::vector<kernels::Reach> reaches;
    std::size_t bytes() const {
      return totals.bytes() + lines.capacity() * sizeof(kernels::ListLine) +
             reaches.capacity() * sizeof(kernels::Reach);
    }
  };

  void multiply(std::int64_t tile, std::int64_t index, const Images<T>& dx) const {
    const std::int64_t group = tile / tiles_.count, first = tile % tiles_.count * tiles_.width();
    const std::int64_t count = std::min(tiles_.width(), shape_.group_in() - first);
    const Chunk pixels = chunk(index);
    const PixelRange range{pixels.first_pixel, pixels.pixels, group * shape_.group_in() + first,
                           count};
    const Pooled<Room> room;
    // Whole tiles of floats are summed where they belong, if in one pass: to come back to rows that
    // are some Ki apart is slow, as they get into each other's way in the cache.
    float* totals;
    std::int64_t stride;
    const bool direct = std::is_same_v<T, float> && !dx.channels_first() &&
                        count == tiles_.width() && num_passes() == 1;
    if (direct) {
      totals = reinterpret_cast<float*>(dx.data + range.first_pixel * shape_.in_channels +
                                        range.first_channel);
      stride = shape_.in_channels;
    } else {
      totals = room->totals.reserve(static_cast<std::size_t>(pixels.pixels * tiles_.width()));
      stride = tiles_.width();
    }
    bool accumulate = false;
    const std::int64_t lines = passes_.split_rows ? 1 : shape_.y.taps;
    lists_.for_blocks(group, [&](std::size_t b, const ChannelBlock& block) {
      const float* const weights = weight_tile(tile) + block_start(block);
      for (std::int64_t ty = 0; ty < shape_.y.taps; ty += lines)
        for (const std::vector<kernels::Reach>& reaches : reaches_) {
          if (shape_.is_linear())
            sum_pixels(b, index, pixels, weights, totals, stride, accumulate);
          else
            sum_rows(b, ty, ty + lines, reaches, pixels, weights, totals, stride, accumulate,
                     *room);
          accumulate = true;
        }
    });
    if (!direct)
      store_pixels(totals, stride, range, shape_.y.in * shape_.x.in, shape_.in_channels, dx);
  }

  void sum_pixels(std::size_t b, std::int64_t band, const Chunk& pixels, const float* weights,
                  float* totals, std::int64_t stride, bool accumulate) const {
    kernels::sum_lists({.eights = tiles_.eights, .rows = 1, .dense_stride = 0, .out_stride = 0},
                       {.survivors = lists_.survivors(),
                        .starts = lists_.starts(b, band, pixels.first_pixel),
                        .count = pixels.pixels},
                       weights, totals, stride, accumulate);
  }

  // Over the kernel's rows [first_ty, last_ty).
  void sum_rows(std::size_t b, std::int64_t first_ty, std::int64_t last_ty,
                const std::vector<kernels::Reach>& reaches, const Chunk& pixels,
                const float* weights, float* totals, std::int64_t stride, bool accumulate,
                Room& lists) const {
    const ConvAxis& axis = shape_.y;
    const std::int64_t row_size = lists_.blocks()[b].channels * tiles_.width();
    lists.reaches = reaches;
    for (kernels::Reach& reach : lists.reaches) reach.displacement *= row_size;
    const std::int64_t first_row = pixels.first_pixel / shape_.x.in;
    for (std::int64_t row = 0; row < pixels.pixels / shape_.x.in; ++row) {
      const std::int64_t image = (first_row + row) / axis.in, y = (first_row + row) % axis.in;
      lists.lines.clear();  // of the gradient, that reached this row
      for (std::int64_t ty = first_ty; ty < last_ty; ++ty) {
        const std::int64_t reach = y + axis.padding - ty * axis.dilation;
        if (reach < 0 || reach % axis.stride != 0 || reach / axis.stride >= axis.out) continue;
        const std::int64_t line = reach / axis.stride;
        lists.lines.push_back(
            {lists_.starts(b, bands_.at(image, line), (image * axis.out + line) * shape_.x.out),
             ty * shape_.x.taps * row_size});
      }
      kernels::sum_reaches(tiles_.eights, lists_.survivors(), lists.lines, lists.reaches, weights,
                           totals + row * shape_.x.in * stride, stride, accumulate);
    }
  }

  ConvShape shape_;
  ColumnTiles tiles_;
  Passes passes_;
  Bands bands_;
  PixelLists lists_;
  float* weights_;
  std::vector<std::vector<kernels::Reach>> reaches_;  // of every pass over a row's taps
};

// The most images whose survivors fit kMostListBytes, in equal pieces.
std::int64_t images_at_once(const ConvShape& shape) {
  const std::int64_t image_bytes = shape.y.out * shape.x.out * shape.out_channels *
                                   std::int64_t{sizeof(float) + sizeof(std::int32_t)};
  const std::int64_t most = std::max<std::int64_t>(1, kMostListBytes / image_bytes);
  const std::int64_t pieces = (shape.images + most - 1) / most;
  return (shape.images + pieces - 1) / pieces;
}

}  // namespace

bool fits_sparse_backward(const ConvShape& shape) {
  const std::int64_t widest = 8 * kernels::kMaxEights;
  const std::int64_t rows = (shape.x.out * shape.x.stride + shape.x.padding + 1) *
                            (shape.group_out() + 1) * (shape.y.taps + 1);
  const std::int64_t pixels = (shape.x.out * shape.x.stride + shape.x.dilation * shape.x.taps) *
                              (shape.y.stride + shape.y.dilation * shape.y.taps);
  const std::int64_t weights = shape.group_out() * shape.taps();
  constexpr std::int64_t kRoom = std::int64_t{1} << 31;
  return rows < kRoom / widest && weights < kRoom / widest && pixels < kRoom / widest &&
         shape.out_pixels() > 0 && shape.in_pixels() > 0 && shape.in_channels > 0 &&
         shape.out_channels > 0;
}

template <typename T>
SparseCounts sparse_input_gradient(const ConvShape& given, const Images<const T>& gradient,
                                   const PruneDraw& draw, const T* weight,
                                   const WeightStrides& strides, const Images<T>& dx,
                                   SparseWorkspace& workspace, const Parallel& parallel) {
  const bool whole = gradient.channels_first() || dx.channels_first();
  ConvShape shape = whole ? given : given.simplified();
  const std::int64_t all = shape.images, at_once = images_at_once(shape);
  SparseCounts counts;
  for (std::int64_t first = 0; first < all; first += at_once) {
    shape.images = std::min(at_once, all - first);
    const std::int64_t skipped = first * shape.y.out * shape.x.out * shape.out_channels;
    PruneDraw part = draw;
    part.first_index += static_cast<std::uint64_t>(skipped);
    const std::int64_t input = first * shape.y.in * shape.x.in * shape.in_channels;
    const SparseCounts more = InputGradient<T>(shape, draw.density, workspace)
                                  .run({gradient.data + skipped, gradient.layout}, part, weight,
                                       strides, {dx.data + input, dx.layout}, parallel);
    counts.elements += more.elements;
    counts.survivors += more.survivors;
    counts.compress_seconds += more.compress_seconds;
    counts.multiply_seconds += more.multiply_seconds;
  }
  return counts;
}

template SparseCounts sparse_input_gradient(const ConvShape&, const Images<const float>&,
                                            const PruneDraw&, const float*, const WeightStrides&,
                                            const Images<float>&, SparseWorkspace&,
                                            const Parallel&);
template SparseCounts sparse_input_gradient(const ConvShape&, const Images<const BFloat16Bits>&,
                                            const PruneDraw&, const BFloat16Bits*,
                                            const WeightStrides&, const Images<BFloat16Bits>&,
                                            SparseWorkspace&, const Parallel&);
template SparseCounts sparse_input_gradient(const ConvShape&, const Images<const Float16Bits>&,
                                            const PruneDraw&, const Float16Bits*,
                                            const WeightStrides&, const Images<Float16Bits>&,
                                            SparseWorkspace&, const Parallel&);

}  // namespace slimgrad
