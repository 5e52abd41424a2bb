#include "codecs/pixel_lists.h"

#include <algorithm>
#include <atomic>

#include <slimgrad/half.h>

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
  workspace.marks.reserve(blocks_.size() * static_cast<std::size_t>(marks_a_block()));
}

template <typename T>
std::int64_t PixelLists::compress(const T* gradient, const PruneDraw& draw,
                                  const Parallel& parallel) const {
  const kernels::Plan plan = pruning_plan<T>(draw);
  std::atomic<std::int64_t> survivors = 0;
  parallel(bands_.count(), [&](std::int64_t band) {
    survivors.fetch_add(compress_band(band, gradient, plan), std::memory_order_relaxed);
  });
  return survivors;
}

void PixelLists::write_offsets(const Bands::Band& band, std::int64_t channels,
                               std::vector<std::int32_t>& offsets) const {
  const auto step = static_cast<std::int32_t>(offsets_.pixel_step_a_channel * channels);
  offsets.resize(static_cast<std::size_t>(band.pixels));
  std::int32_t* to = offsets.data();
  for (std::int64_t line = 0; line < band.pixels; line += shape_.x.out)
    for (std::int64_t x = 0; x < shape_.x.out; ++x) *to++ = static_cast<std::int32_t>(x) * step;
}

template <typename T>
std::int64_t PixelLists::compress_band(std::int64_t index, const T* gradient,
                                       const kernels::Plan& plan) const {
  struct Room {
    std::vector<std::vector<std::int32_t>> offsets;
    std::vector<kernels::CompactBlock> blocks;
  };
  Room& room = per_thread<Room>();
  const Bands::Band band = bands_[index];
  room.blocks.clear();
  // Blocks of one size have the same offsets; only the last one of a group may have another.
  room.offsets.resize(blocks_.size() > 1 ? 2 : 1);
  std::int64_t sizes[2] = {0, 0};
  const auto row_offsets = [&](std::int64_t channels) {
    const std::size_t which = sizes[0] == 0 || sizes[0] == channels ? 0 : 1;
    if (sizes[which] != channels) {
      sizes[which] = channels;
      write_offsets(band, channels, room.offsets[which]);
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
                           .marks = marks(b, index, band.first_pixel)});
    *room.blocks[b].marks = index * band_room() + block.first_channel * bands_.max_pixels() +
                            static_cast<std::int64_t>(b * kernels::kCompactSlack);
  }
  const std::int64_t columns = shape_.out_channels, first = band.first_pixel * columns;
  kernels::compact_rows<T>(
      plan, {gradient + first, band.pixels, columns, static_cast<std::uint64_t>(first)},
      room.blocks);
  std::int64_t survivors = 0;
  for (const kernels::CompactBlock& block : room.blocks)
    survivors += block.marks[band.pixels] - block.marks[0];
  return survivors;
}

template std::int64_t PixelLists::compress(const float*, const PruneDraw&, const Parallel&) const;
template std::int64_t PixelLists::compress(const BFloat16Bits*, const PruneDraw&,
                                           const Parallel&) const;

}  // namespace slimgrad
