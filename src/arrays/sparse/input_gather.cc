// Every input pixel gathers from the gradient pixels that it reached in forward. The survivors of
// neighbouring gradient pixels of one row lie one behind the other, and their taps are neighbours
// too, so that all taps of a kernel row are one stretch of survivors:
//
//   W tile         rows (ty, tx, o) of one column tile
//   survivor       of gradient pixel x', channel o: offset (o - stride x' O) rows
//   input pixel x  tap tx = x + padding - stride x', so
//                  displacement (ty taps_x + x + padding) O rows
//
// with O channels in a block.
//
// A row of W is used once, so that what counts is the cache that it comes from. Channels are cut
// into blocks, and the rows of the kernel may be taken one by one, so that few rows of W are used
// for many pixels; but every pass adds to the sums of every pixel once more. What is cheapest
// depends on the sparsity.
#include <algorithm>
#include <vector>

#include "arrays/sparse/input.h"
#include "arrays/sparse/pixel_lists.h"
#include "base/stopwatch.h"
#include "kernels/sparse/sums.h"

namespace slimgrad {
namespace {

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
      const std::int64_t rows = lines * shape.x.taps * channels;
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

// The gradient pixels of a row that reached each input pixel of a row. Displacements are in rows of
// a block.
std::vector<kernels::Reach> find_reaches(const ConvAxis& axis) {
  std::vector<kernels::Reach> reaches;
  for (std::int64_t x = 0; x < axis.in; ++x) {
    const std::int64_t leftmost = x + axis.padding - (axis.taps - 1);
    const std::int64_t first = leftmost <= 0 ? 0 : (leftmost + axis.stride - 1) / axis.stride;
    const std::int64_t last = std::min((x + axis.padding) / axis.stride + 1, axis.out);
    if (first < last)
      reaches.push_back({first, last, x + axis.padding});
    else
      reaches.push_back({0, 0, 0});
  }
  return reaches;
}

template <typename T>
class GatherInput {
 public:
  GatherInput(const ConvShape& shape, double density, SparseWorkspace& workspace)
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
            static_cast<std::size_t>(shape.groups * tiles_.count * tile_size()))),
        reaches_(find_reaches(shape.x)) {}

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
    return blocks * (passes_.split_rows ? shape_.y.taps : 1);
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
      for (std::int64_t ty = 0; ty < shape_.y.taps; ty += lines, accumulate = true) {
        if (shape_.is_linear())
          sum_pixels(b, index, pixels, weights, totals, stride, accumulate);
        else
          sum_rows(b, ty, ty + lines, pixels, weights, totals, stride, accumulate, *room);
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
  void sum_rows(std::size_t b, std::int64_t first_ty, std::int64_t last_ty, const Chunk& pixels,
                const float* weights, float* totals, std::int64_t stride, bool accumulate,
                Room& lists) const {
    const ConvAxis& axis = shape_.y;
    const std::int64_t row_size = lists_.blocks()[b].channels * tiles_.width();
    lists.reaches = reaches_;
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
  std::vector<kernels::Reach> reaches_;
};

}  // namespace

template <typename T>
SparseCounts gather_input_gradient(const ConvShape& shape, const Images<const T>& gradient,
                                   const PruneDraw& draw, const T* weight,
                                   const WeightStrides& strides, const Images<T>& dx,
                                   SparseWorkspace& workspace, const Parallel& parallel) {
  return GatherInput<T>(shape, draw.density, workspace)
      .run(gradient, draw, weight, strides, dx, parallel);
}

template SparseCounts gather_input_gradient(const ConvShape&, const Images<const float>&,
                                            const PruneDraw&, const float*, const WeightStrides&,
                                            const Images<float>&, SparseWorkspace&,
                                            const Parallel&);
template SparseCounts gather_input_gradient(const ConvShape&, const Images<const BFloat16Bits>&,
                                            const PruneDraw&, const BFloat16Bits*,
                                            const WeightStrides&, const Images<BFloat16Bits>&,
                                            SparseWorkspace&, const Parallel&);
template SparseCounts gather_input_gradient(const ConvShape&, const Images<const Float16Bits>&,
                                            const PruneDraw&, const Float16Bits*,
                                            const WeightStrides&, const Images<Float16Bits>&,
                                            SparseWorkspace&, const Parallel&);

}  // namespace slimgrad
