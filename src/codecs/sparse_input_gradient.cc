// The gradient of the input. Every input pixel gathers from the gradient pixels that it reached in
// forward, tap by tap. The survivors of neighbouring gradient pixels of one row lie one behind the
// other, and their taps are neighbours too, so that all taps of a kernel row are one run:
//
//   W tile        rows (ty, tx, o) of one column tile
//   survivor      of gradient pixel x', channel o: offset (o - stride x' O) rows
//   input pixel x tap tx = x + padding - stride x', so displacement (ty taps_x + x + padding) O
//   rows
//
// with O channels in a block. Channels are cut into blocks for which a tile of W stays in the
// second-level cache. With dilation each tap is a run of its own.
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

constexpr int kMaxInputEights = 8;

// Output channels of one group whose weights are used together.
struct Block {
  std::int64_t group, first_channel, channels;  // channels counted over all groups
};

std::int64_t channels_a_block(const ConvShape& shape, std::int64_t tile_width) {
  const auto row_bytes = static_cast<std::int64_t>(sizeof(float)) * tile_width;
  const std::int64_t fitting = (kTileBytes + kTileBytes / 2) / (shape.taps() * row_bytes);
  const std::int64_t count = (shape.group_out() + std::max<std::int64_t>(8, fitting) - 1) /
                             std::max<std::int64_t>(8, fitting);
  return (shape.group_out() + count - 1) / count;
}

template <typename T>
class InputGradient {
 public:
  InputGradient(const ConvShape& shape, SparseWorkspace& workspace)
      : shape_(shape),
        tiles_(column_tiles(shape.group_in(), kMaxInputEights)),
        bands_(shape, tiles_.width() * static_cast<std::int64_t>(sizeof(float))),
        workspace_(workspace) {
    find_reaches();
    const std::int64_t step = channels_a_block(shape, tiles_.width());
    for (std::int64_t group = 0; group < shape.groups; ++group)
      for (std::int64_t channel = 0; channel < shape.group_out(); channel += step)
        blocks_.push_back({group, group * shape.group_out() + channel,
                           std::min(step, shape.group_out() - channel)});
    band_room_ = bands_.max_pixels() * shape.out_channels +
                 static_cast<std::int64_t>(blocks_.size() * kernels::kCompactSlack);
    const auto room = static_cast<std::size_t>(bands_.count() * band_room_);
    workspace.values.reserve(room);
    workspace.offsets.reserve(room);
    const auto lists = blocks_.size() * static_cast<std::size_t>(shape.out_pixels());
    workspace.begins.reserve(lists);
    workspace.ends.reserve(lists);
    workspace.dense.reserve(static_cast<std::size_t>(shape.groups * tiles_.count * tile_size()));
  }

  SparseCounts run(const T* gradient, const PruneDraw& draw, const T* weight,
                   const WeightStrides& strides, T* dx, const Parallel& parallel) {
    Stopwatch watch;
    SparseCounts counts;
    parallel(shape_.groups * tiles_.count,
             [&](std::int64_t tile) { pack_weight(tile, weight, strides); });
    std::atomic<std::int64_t> survivors = 0;
    parallel(bands_.count(), [&](std::int64_t band) {
      survivors.fetch_add(compress(bands_[band], band, gradient, draw), std::memory_order_relaxed);
    });
    counts.compress_seconds = watch.lap();
    const std::int64_t chunks = num_chunks();
    // Neighbouring tasks share a tile of the weight.
    parallel(shape_.groups * tiles_.count * chunks,
             [&](std::int64_t task) { multiply(task / chunks, task % chunks, dx); });
    counts.multiply_seconds = watch.lap();
    counts.elements = shape_.out_pixels() * shape_.out_channels;
    counts.survivors = survivors;
    return counts;
  }

 private:
  // Rows of all blocks of a group.
  std::int64_t tile_size() const { return shape_.taps() * shape_.group_out() * tiles_.width(); }
  // Tiles of all groups are counted in one row. Within a tile: block, tap, channel.
  float* weight_tile(std::int64_t tile) const {
    return workspace_.dense.data() + tile * tile_size();
  }
  std::int64_t block_start(const Block& block) const {
    return (block.first_channel - block.group * shape_.group_out()) * shape_.taps() *
           tiles_.width();
  }

  void pack_weight(std::int64_t tile, const T* weight, const WeightStrides& strides) const {
    const std::int64_t group = tile / tiles_.count, first = tile % tiles_.count * tiles_.width();
    const std::int64_t count = std::min(tiles_.width(), shape_.group_in() - first);
    for (const Block& block : blocks_) {
      if (block.group != group) continue;
      float* row = weight_tile(tile) + block_start(block);
      for (std::int64_t ty = 0; ty < shape_.y.taps; ++ty)
        for (std::int64_t tx = 0; tx < shape_.x.taps; ++tx)
          for (std::int64_t o = 0; o < block.channels; ++o, row += tiles_.width()) {
            const T* from = weight + (block.first_channel + o) * strides.out + ty * strides.y +
                            tx * strides.x + first * strides.in;
            if (strides.in == 1) {
              load_tile_row(from, count, tiles_.width(), row);
            } else {
              for (std::int64_t c = 0; c < count; ++c) row[c] = to_float(from[c * strides.in]);
              std::fill(row + count, row + tiles_.width(), 0.0f);
            }
          }
    }
  }

  // Writes the survivors of a band, block by block and in each by pixel. Returns how many.
  std::int64_t compress(const Bands::Band& band, std::int64_t index, const T* gradient,
                        const PruneDraw& draw) const {
    const std::int64_t columns = shape_.out_channels;
    std::vector<std::int64_t> cursors(blocks_.size());
    std::int64_t survivors = 0;
    for (std::size_t b = 0; b < blocks_.size(); ++b)
      cursors[b] = index * band_room_ + blocks_[b].first_channel * bands_.max_pixels() +
                   static_cast<std::int64_t>(b * kernels::kCompactSlack);
    for_pruned_rows(
        gradient, columns, band.first_pixel, band.pixels, draw,
        [&](std::int64_t pixel, const float* values) {
          const std::int64_t x = pixel % shape_.x.out;
          for (std::size_t b = 0; b < blocks_.size(); ++b) {
            const Block& block = blocks_[b];
            const std::int64_t first = -shape_.x.stride * x * block.channels * tiles_.width();
            const std::size_t list =
                b * static_cast<std::size_t>(shape_.out_pixels()) + static_cast<std::size_t>(pixel);
            const auto kept = static_cast<std::int64_t>(kernels::compact(
                values + block.first_channel, static_cast<std::size_t>(block.channels),
                static_cast<std::int32_t>(first), static_cast<std::int32_t>(tiles_.width()),
                workspace_.values.data() + cursors[b], workspace_.offsets.data() + cursors[b]));
            workspace_.begins.data()[list] = cursors[b];
            cursors[b] += kept;
            workspace_.ends.data()[list] = cursors[b];
            survivors += kept;
          }
        });
    return survivors;
  }

  // Chunks of pixel rows of the input: enough pixels to share a tile of the weight, few enough that
  // their sums stay in the cache from block to block.
  std::int64_t rows_a_chunk() const {
    constexpr std::int64_t kPixels = 256;
    return std::max<std::int64_t>(1, kPixels / shape_.x.in);
  }
  std::int64_t num_chunks() const {
    return (shape_.images * shape_.y.in + rows_a_chunk() - 1) / rows_a_chunk();
  }

  void multiply(std::int64_t tile, std::int64_t chunk, T* dx) const {
    const std::int64_t group = tile / tiles_.count, first = tile % tiles_.count * tiles_.width();
    const std::int64_t count = std::min(tiles_.width(), shape_.group_in() - first);
    const std::int64_t first_row = chunk * rows_a_chunk();
    const std::int64_t rows = std::min(rows_a_chunk(), shape_.images * shape_.y.in - first_row);
    const std::int64_t pixels = rows * shape_.x.in;
    T* const out =
        dx + first_row * shape_.x.in * shape_.in_channels + group * shape_.group_in() + first;
    static thread_local Scratch<float> buffer;
    static thread_local std::vector<kernels::Run> runs;
    static thread_local std::vector<kernels::Sum> sums;
    // Whole tiles of floats are summed where they belong, others in a buffer.
    float* totals;
    std::int64_t stride;
    const bool direct = std::is_same_v<T, float> && count == tiles_.width();
    if (direct) {
      totals = reinterpret_cast<float*>(out);
      stride = shape_.in_channels;
    } else {
      totals = buffer.reserve(static_cast<std::size_t>(pixels * tiles_.width()));
      stride = tiles_.width();
    }
    bool accumulate = false;
    for (std::size_t b = 0; b < blocks_.size(); ++b) {
      if (blocks_[b].group != group) continue;
      runs.clear();
      sums.clear();
      for (std::int64_t row = 0; row < rows; ++row)
        add_row(b, first_row + row, totals + row * shape_.x.in * stride, stride, runs, sums);
      kernels::sparse_sums(tiles_.eights, {workspace_.values.data(), workspace_.offsets.data()},
                           weight_tile(tile) + block_start(blocks_[b]), runs, sums, accumulate);
      accumulate = true;
    }
    if (!direct)
      for (std::int64_t p = 0; p < pixels; ++p)
        store_tile_row(totals + p * stride, count, out + p * shape_.in_channels);
  }

  // The sums of one pixel row of the input; `image_row` counts over all images.
  void add_row(std::size_t b, std::int64_t image_row, float* out, std::int64_t out_stride,
               std::vector<kernels::Run>& runs, std::vector<kernels::Sum>& sums) const {
    const ConvAxis& axis = shape_.y;
    const std::int64_t image = image_row / axis.in, y = image_row % axis.in;
    const std::int64_t row_size = blocks_[b].channels * tiles_.width();
    const std::size_t lists = b * static_cast<std::size_t>(shape_.out_pixels());
    const std::int64_t* const begins = workspace_.begins.data() + lists;
    const std::int64_t* const ends = workspace_.ends.data() + lists;
    struct Line {
      std::int64_t first_pixel, displacement;
    };
    static thread_local std::vector<Line> lines;  // of the gradient, that reached this row
    lines.clear();
    for (std::int64_t ty = 0; ty < axis.taps; ++ty) {
      const std::int64_t reach = y + axis.padding - ty * axis.dilation;
      if (reach < 0 || reach % axis.stride != 0 || reach / axis.stride >= axis.out) continue;
      lines.push_back(
          {(image * axis.out + reach / axis.stride) * shape_.x.out, ty * shape_.x.taps * row_size});
    }
    for (std::int64_t x = 0; x < shape_.x.in; ++x) {
      const auto first_run = static_cast<std::int64_t>(runs.size());
      const std::size_t first = first_reach_[static_cast<std::size_t>(x)];
      const std::size_t last = first_reach_[static_cast<std::size_t>(x) + 1];
      for (const Line& line : lines)
        for (std::size_t r = first; r < last; ++r) {
          const Reach& reach = reaches_[r];
          runs.push_back({begins[line.first_pixel + reach.low], ends[line.first_pixel + reach.high],
                          line.displacement + reach.displacement * row_size});
        }
      sums.push_back({out + x * out_stride, first_run, static_cast<std::int64_t>(runs.size())});
    }
  }

  // The gradient pixels low to high, of one row, that reached an input pixel by taps that are
  // neighbours, and the displacement for them in rows of a block.
  struct Reach {
    std::int64_t low, high, displacement;
  };
  // Once for all rows: it takes divisions.
  void find_reaches() {
    const ConvAxis& axis = shape_.x;
    for (std::int64_t x = 0; x < axis.in; ++x) {
      first_reach_.push_back(reaches_.size());
      if (axis.dilation == 1) {
        const std::int64_t leftmost = x + axis.padding - (axis.taps - 1);
        const std::int64_t low = leftmost <= 0 ? 0 : (leftmost + axis.stride - 1) / axis.stride;
        const std::int64_t high = std::min((x + axis.padding) / axis.stride, axis.out - 1);
        if (low <= high) reaches_.push_back({low, high, x + axis.padding});
      } else {
        for (std::int64_t tx = 0; tx < axis.taps; ++tx) {
          const std::int64_t reach = x + axis.padding - tx * axis.dilation;
          if (reach < 0 || reach % axis.stride != 0 || reach / axis.stride >= axis.out) continue;
          const std::int64_t pixel = reach / axis.stride;
          reaches_.push_back({pixel, pixel, tx + reach});
        }
      }
    }
    first_reach_.push_back(reaches_.size());
  }

  ConvShape shape_;
  ColumnTiles tiles_;
  Bands bands_;
  SparseWorkspace& workspace_;
  std::vector<Block> blocks_;
  std::vector<Reach> reaches_;
  std::vector<std::size_t> first_reach_;  // of each input column, and their end
  std::int64_t band_room_;
};

}  // namespace

bool fits_sparse_backward(const ConvShape& shape) {
  const std::int64_t widest = 8 * kernels::kMaxEights;
  const std::int64_t rows = (shape.x.out * shape.x.stride + shape.x.padding + 1) *
                            (shape.group_out() + 1) * (shape.y.taps + 1);
  const std::int64_t pixels = (shape.x.out * shape.x.stride + shape.x.dilation * shape.x.taps) *
                              (shape.y.stride + shape.y.dilation * shape.y.taps);
  constexpr std::int64_t kRoom = std::int64_t{1} << 31;
  return rows < kRoom / widest && pixels < kRoom / widest && shape.out_pixels() > 0 &&
         shape.in_pixels() > 0 && shape.in_channels > 0 && shape.out_channels > 0;
}

template <typename T>
SparseCounts sparse_input_gradient(const ConvShape& shape, const T* gradient, const PruneDraw& draw,
                                   const T* weight, const WeightStrides& strides, T* dx,
                                   SparseWorkspace& workspace, const Parallel& parallel) {
  return InputGradient<T>(shape.simplified(), workspace)
      .run(gradient, draw, weight, strides, dx, parallel);
}

template SparseCounts sparse_input_gradient(const ConvShape&, const float*, const PruneDraw&,
                                            const float*, const WeightStrides&, float*,
                                            SparseWorkspace&, const Parallel&);
template SparseCounts sparse_input_gradient(const ConvShape&, const BFloat16Bits*, const PruneDraw&,
                                            const BFloat16Bits*, const WeightStrides&,
                                            BFloat16Bits*, SparseWorkspace&, const Parallel&);

}  // namespace slimgrad
