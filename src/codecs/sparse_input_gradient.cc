// The gradient of the input. Every input pixel gathers from the gradient pixels that it reached in
// forward, tap by tap. The survivors of neighbouring gradient pixels of one row lie one behind the
// other, and their taps are neighbours too, so that all taps of a kernel row are one run:
//
//   W tile        rows (ty, tx, o) of one column tile
//   survivor      of gradient pixel x', channel o: offset (o - stride x' O) rows
//   input pixel x tap tx = x + padding - stride x', so displacement (ty taps_x + x + padding) O
//   rows
//
// with O channels in a block. With dilation each tap is a run of its own.
//
// A row of W is used once, so that what counts is the cache that it comes from. Channels are cut
// into blocks, and the rows of the kernel may be taken one by one, so that few rows of W are used
// for many pixels; but every pass adds to the sums of every pixel once more. What is cheapest
// depends on the sparsity.
#include <algorithm>
#include <atomic>
#include <vector>

#include "codecs/sparse_backward.h"
#include "codecs/sparse_layout.h"
#include "codecs/sum_lists.h"
#include "codecs/tile_values.h"
#include "kernels/compact_rows.h"
#include "kernels/sparse_sums.h"

namespace slimgrad {
namespace {

constexpr int kMaxInputEights = 8;
constexpr std::int64_t kCompressedPixels = 512;  // in one task, if they are not too large

// Output channels of one group whose weights are used together.
struct Block {
  std::int64_t group, first_channel, channels;  // channels counted over all groups
};

// One block after the other, each with all rows of the kernel at once or one at a time.
struct Passes {
  std::int64_t channels;  // a block
  bool split_rows;
};

Passes cheapest_passes(const ConvShape& shape, const ColumnTiles& tiles, double density) {
  constexpr double kSumNanoseconds = 10, kRunNanoseconds = 5;
  Passes best{};
  double lowest = 0;
  for (const bool split : {false, true}) {
    const std::int64_t lines = split ? 1 : shape.y.taps;
    const double fixed = kSumNanoseconds + kRunNanoseconds * static_cast<double>(lines);
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

template <typename T>
class InputGradient {
 public:
  InputGradient(const ConvShape& shape, double density, SparseWorkspace& workspace)
      : shape_(shape),
        tiles_(column_tiles(shape.group_in(), kMaxInputEights)),
        passes_(cheapest_passes(shape, tiles_, density)),
        bands_(shape, tiles_.width() * std::int64_t{sizeof(float)}, kCompressedPixels),
        workspace_(workspace) {
    find_reaches();
    const std::int64_t step = passes_.channels;
    for (std::int64_t group = 0; group < shape.groups; ++group)
      for (std::int64_t channel = 0; channel < shape.group_out(); channel += step)
        blocks_.push_back({group, group * shape.group_out() + channel,
                           std::min(step, shape.group_out() - channel)});
    band_room_ = bands_.max_pixels() * shape.out_channels +
                 static_cast<std::int64_t>(blocks_.size() * kernels::kCompactSlack);
    const auto room = static_cast<std::size_t>(bands_.count() * band_room_);
    workspace.values.reserve(room);
    workspace.offsets.reserve(room);
    workspace.marks.reserve(blocks_.size() * static_cast<std::size_t>(marks_a_block()));
    workspace.dense.reserve(static_cast<std::size_t>(shape.groups * tiles_.count * tile_size()));
  }

  SparseCounts run(const T* gradient, const PruneDraw& draw, const T* weight,
                   const WeightStrides& strides, T* dx, const Parallel& parallel) {
    Stopwatch watch;
    SparseCounts counts;
    parallel(shape_.groups * tiles_.count,
             [&](std::int64_t tile) { pack_weight(tile, weight, strides); });
    const kernels::Plan plan = pruning_plan<T>(draw);
    std::atomic<std::int64_t> survivors = 0;
    parallel(bands_.count(), [&](std::int64_t band) {
      survivors.fetch_add(compress(band, gradient, plan), std::memory_order_relaxed);
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

  // Every band has a mark for each of its pixels and one for their end.
  std::int64_t marks_a_block() const { return shape_.out_pixels() + bands_.count(); }
  std::int64_t* marks(std::size_t block, std::int64_t band, std::int64_t pixel) const {
    return workspace_.marks.data() + static_cast<std::int64_t>(block) * marks_a_block() + band +
           pixel;
  }

  // Writes the survivors of a band, block by block and in each by pixel. Returns how many.
  std::int64_t compress(std::int64_t index, const T* gradient, const kernels::Plan& plan) const {
    const Bands::Band band = bands_[index];
    auto& compact = per_thread<std::vector<kernels::CompactBlock>>();
    compact.clear();
    // A line of one pixel needs no steps from pixel to pixel, so that all are like one line.
    const bool one_line = shape_.x.out == 1;
    for (std::size_t b = 0; b < blocks_.size(); ++b) {
      const Block& block = blocks_[b];
      const std::int64_t row_step = -shape_.x.stride * block.channels * tiles_.width();
      compact.push_back({.first_column = block.first_channel,
                         .num_columns = block.channels,
                         .column_step = static_cast<std::int32_t>(tiles_.width()),
                         .row_step = one_line ? 0 : static_cast<std::int32_t>(row_step),
                         .values = workspace_.values.data(),
                         .offsets = workspace_.offsets.data(),
                         .marks = marks(b, index, band.first_pixel)});
      *compact[b].marks = index * band_room_ + block.first_channel * bands_.max_pixels() +
                          static_cast<std::int64_t>(b * kernels::kCompactSlack);
    }
    const std::int64_t columns = shape_.out_channels;
    const std::int64_t step = one_line ? band.pixels : shape_.x.out;
    for (std::int64_t p = 0; p < band.pixels; p += step) {
      const std::int64_t first = (band.first_pixel + p) * columns;
      kernels::compact_rows<T>(
          plan, {gradient + first, step, columns, static_cast<std::uint64_t>(first)}, compact);
      for (kernels::CompactBlock& block : compact) block.marks += step;
    }
    std::int64_t survivors = 0;
    for (std::size_t b = 0; b < blocks_.size(); ++b)
      survivors += *compact[b].marks - *marks(b, index, band.first_pixel);
    return survivors;
  }

  // Of a group.
  std::int64_t num_passes() const {
    const auto blocks = static_cast<std::int64_t>(blocks_.size()) / shape_.groups;
    return blocks * (passes_.split_rows ? shape_.y.taps : 1);
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
    struct Buffer : Scratch<float> {};
    Buffer& buffer = per_thread<Buffer>();
    SumLists& lists = per_thread<SumLists>();
    // Whole tiles of floats are summed where they belong, if in one pass: to come back to rows that
    // are some Ki apart is slow, as they get into each other's way in the cache.
    float* totals;
    std::int64_t stride;
    const bool direct = std::is_same_v<T, float> && count == tiles_.width() && num_passes() == 1;
    if (direct) {
      totals = reinterpret_cast<float*>(out);
      stride = shape_.in_channels;
    } else {
      totals = buffer.reserve(static_cast<std::size_t>(pixels * tiles_.width()));
      stride = tiles_.width();
    }
    bool accumulate = false;
    const kernels::SumShape sum_shape{
        .eights = tiles_.eights, .rows = 1, .dense_stride = 0, .out_stride = 0};
    const std::int64_t lines = passes_.split_rows ? 1 : shape_.y.taps;
    for (std::size_t b = 0; b < blocks_.size(); ++b) {
      if (blocks_[b].group != group) continue;
      for (std::int64_t ty = 0; ty < shape_.y.taps; ty += lines) {
        lists.clear();
        for (std::int64_t row = 0; row < rows; ++row)
          add_row(b, ty, ty + lines, first_row + row, row * shape_.x.in * stride, stride, lists);
        kernels::sparse_sums(sum_shape, {workspace_.values.data(), workspace_.offsets.data()},
                             weight_tile(tile) + block_start(blocks_[b]), lists.runs, lists.sums,
                             totals, accumulate);
        accumulate = true;
      }
    }
    if (!direct)
      for (std::int64_t p = 0; p < pixels; ++p)
        store_tile_row(totals + p * stride, count, out + p * shape_.in_channels);
  }

  // The sums of one pixel row of the input over the kernel's rows [first_ty, last_ty); `image_row`
  // counts over all images.
  void add_row(std::size_t b, std::int64_t first_ty, std::int64_t last_ty, std::int64_t image_row,
               std::int64_t out, std::int64_t out_stride, SumLists& lists) const {
    const ConvAxis& axis = shape_.y;
    const std::int64_t image = image_row / axis.in, y = image_row % axis.in;
    const std::int64_t row_size = blocks_[b].channels * tiles_.width();
    struct Line {
      const std::int64_t* marks;
      std::int64_t displacement;
    };
    auto& lines = per_thread<std::vector<Line>>();  // of the gradient, that reached this row
    lines.clear();
    for (std::int64_t ty = first_ty; ty < last_ty; ++ty) {
      const std::int64_t reach = y + axis.padding - ty * axis.dilation;
      if (reach < 0 || reach % axis.stride != 0 || reach / axis.stride >= axis.out) continue;
      const std::int64_t row = reach / axis.stride;
      lines.push_back({marks(b, bands_.at(image, row), (image * axis.out + row) * shape_.x.out),
                       ty * shape_.x.taps * row_size});
    }
    auto next_run = static_cast<std::int64_t>(lists.runs.size());
    const std::size_t first_sum = lists.sums.size();
    lists.runs.resize(lists.runs.size() + lines.size() * reaches_.size());
    lists.sums.resize(first_sum + static_cast<std::size_t>(shape_.x.in));
    kernels::Run* run = lists.runs.data() + next_run;
    kernels::Sum* sum = lists.sums.data() + first_sum;
    const Reach* reach = reaches_.data();
    for (std::int64_t x = 0; x < shape_.x.in; ++x, out += out_stride) {
      const Reach* const last = reaches_.data() + first_reach_[static_cast<std::size_t>(x) + 1];
      const std::int64_t first_run = next_run;
      for (const Line& line : lines)
        for (const Reach* r = reach; r < last; ++r, ++next_run)
          *run++ = {line.marks[r->low], line.marks[r->high + 1],
                    line.displacement + r->displacement * row_size};
      *sum++ = {out, first_run, next_run};
      reach = last;
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
  Passes passes_;
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
  return InputGradient<T>(shape.simplified(), draw.density, workspace)
      .run(gradient, draw, weight, strides, dx, parallel);
}

template SparseCounts sparse_input_gradient(const ConvShape&, const float*, const PruneDraw&,
                                            const float*, const WeightStrides&, float*,
                                            SparseWorkspace&, const Parallel&);
template SparseCounts sparse_input_gradient(const ConvShape&, const BFloat16Bits*, const PruneDraw&,
                                            const BFloat16Bits*, const WeightStrides&,
                                            BFloat16Bits*, SparseWorkspace&, const Parallel&);

}  // namespace slimgrad
