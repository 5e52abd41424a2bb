#include "arrays/sparse/pixel_lists.h"

#include <algorithm>
#include <atomic>

#include <slimgrad/half.h>

#include "arrays/apply/loop_treatment.h"
#include "arrays/sparse/list_room.h"

namespace slimgrad {

PixelLists::PixelLists(const ConvShape& shape, const Bands& bands, std::int64_t channels,
                       Offsets offsets, SparseWorkspace& workspace)
    : shape_(shape), bands_(bands), offsets_(offsets), workspace_(workspace) {
  for (std::int64_t group = 0; group < shape.groups; ++group)
    for (std::int64_t first = 0; first < shape.group_out(); first += channels)
      blocks_.push_back({group * shape.group_out() + first,
                         std::min(channels, shape.group_out() - first), first});
  const auto room = static_cast<std::size_t>(bands_.count() * band_room());
  workspace.values.reserve(room);
  workspace.offsets.reserve(room);
  workspace.starts.reserve(blocks_.size() * static_cast<std::size_t>(starts_a_block()));
}

template <typename T>
std::int64_t PixelLists::compress(const Images<const T>& gradient, const PruneDraw& draw,
                                  const Parallel& parallel) const {
  const kernels::LoopTreatment treatment = loop_treatment<T>("prune", draw.treatment);
  std::atomic<std::int64_t> survivors = 0;
  parallel(bands_.count(), [&](std::int64_t band) {
    survivors.fetch_add(gradient.channels_first()
                            ? compress_first(band, gradient.data, treatment, draw)
                            : compress_last(band, gradient.data, treatment, draw),
                        std::memory_order_relaxed);
  });
  return survivors;
}

void PixelLists::write_offsets(std::int64_t pixels, std::int64_t channels,
                               std::vector<std::int32_t>& offsets) const {
  const auto step = static_cast<std::int32_t>(offsets_.pixel_step_a_channel * channels);
  offsets.resize(static_cast<std::size_t>(pixels));
  std::int32_t* to = offsets.data();
  for (std::int64_t line = 0; line < pixels; line += shape_.x.out)
    for (std::int64_t x = 0; x < shape_.x.out; ++x) *to++ = static_cast<std::int32_t>(x) * step;
}

template <typename T>
std::int64_t PixelLists::compress_last(std::int64_t index, const T* gradient,
                                       const kernels::LoopTreatment& treatment,
                                       const PruneDraw& draw) const {
  struct Room {
    std::vector<std::vector<std::int32_t>> offsets;
    std::vector<kernels::CompactBlock> blocks;
    std::size_t bytes() const {
      std::size_t sum = blocks.capacity() * sizeof(kernels::CompactBlock);
      for (const auto& some : offsets) sum += some.capacity() * sizeof(std::int32_t);
      return sum;
    }
  };
  const Pooled<Room> pooled;
  Room& room = *pooled;
  const Bands::Band band = bands_[index];
  room.blocks.clear();
  // Blocks of one size have the same offsets; only the last one of a group may have another.
  room.offsets.resize(blocks_.size() > 1 ? 2 : 1);
  std::int64_t sizes[2] = {0, 0};
  const auto row_offsets = [&](std::int64_t channels) {
    const std::size_t which = sizes[0] == 0 || sizes[0] == channels ? 0 : 1;
    if (sizes[which] != channels) {
      sizes[which] = channels;
      write_offsets(band.pixels, channels, room.offsets[which]);
    }
    return room.offsets[which].data();
  };
  for (std::size_t b = 0; b < blocks_.size(); ++b) {
    const ChannelBlock& block = blocks_[b];
    room.blocks.push_back({.first_column = block.first_channel,
                           .num_columns = block.channels,
                           .column_step = static_cast<std::int32_t>(offsets_.channel_step),
                           .row_offsets = row_offsets(block.channels),
                           .values = workspace_.values.data(),
                           .offsets = workspace_.offsets.data(),
                           .starts = starts(b, index, band.first_pixel)});
    *room.blocks[b].starts = block_start(index, b);
  }
  const std::int64_t columns = shape_.out_channels, first = band.first_pixel * columns;
  kernels::compact_rows<T>(treatment,
                           {gradient + first, band.pixels, columns,
                            draw.first_index + static_cast<std::uint64_t>(first)},
                           room.blocks);
  std::int64_t survivors = 0;
  for (const kernels::CompactBlock& block : room.blocks)
    survivors += block.starts[band.pixels] - block.starts[0];
  return survivors;
}

// An image is a matrix whose columns are pixels: those of a block of channels are some of its rows.
template <typename T>
std::int64_t PixelLists::compress_first(std::int64_t index, const T* gradient,
                                        const kernels::LoopTreatment& treatment,
                                        const PruneDraw& draw) const {
  struct Room {
    GrowingLists lists;
    std::vector<std::int32_t> pixels, channels;
    std::size_t bytes() const {
      return lists.bytes() + (pixels.capacity() + channels.capacity()) * sizeof(std::int32_t);
    }
  };
  const Pooled<Room> room;
  const Bands::Band band = bands_[index];
  const std::int64_t pixels = band.rows * shape_.x.out, image_pixels = shape_.y.out * shape_.x.out;
  const std::int64_t step = std::min(pixels, kernels::kMostColumns);
  std::int64_t survivors = 0;
  for (std::size_t b = 0; b < blocks_.size(); ++b) {
    const ChannelBlock& block = blocks_[b];
    write_offsets(pixels, block.channels, room->pixels);
    room->channels.clear();
    for (std::int64_t c = 0; c < block.channels; ++c)
      room->channels.push_back(static_cast<std::int32_t>(c * offsets_.channel_step));
    std::int64_t* list_starts = starts(b, index, band.first_pixel);
    *list_starts = block_start(index, b);
    for (std::int64_t i = 0; i < band.images; ++i)
      for (std::int64_t pixel = 0; pixel < pixels; pixel += step) {
        const std::int64_t count = std::min(step, pixels - pixel);
        const std::int64_t first =
            ((band.first_image + i) * shape_.out_channels + block.first_channel) * image_pixels +
            band.first_row * shape_.x.out + pixel;
        kernels::compact_columns<T>(
            treatment,
            {gradient + first, block.channels, count,
             draw.first_index + static_cast<std::uint64_t>(first), image_pixels},
            {.first_column = 0,
             .num_columns = count,
             .row_offsets = room->channels.data(),
             .column_offsets = room->pixels.data() + pixel,
             .many = draw.many(),
             .room = room->lists.reserve(step, block.channels),
             .values = workspace_.values.data(),
             .offsets = workspace_.offsets.data(),
             .starts = list_starts});
        list_starts += count;
      }
    survivors += *list_starts - block_start(index, b);
  }
  return survivors;
}

template std::int64_t PixelLists::compress(const Images<const float>&, const PruneDraw&,
                                           const Parallel&) const;
template std::int64_t PixelLists::compress(const Images<const BFloat16Bits>&, const PruneDraw&,
                                           const Parallel&) const;
template std::int64_t PixelLists::compress(const Images<const Float16Bits>&, const PruneDraw&,
                                           const Parallel&) const;

}  // namespace slimgrad
