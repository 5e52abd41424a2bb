#include "arrays/sparse/channel_lists.h"

#include <algorithm>
#include <cstring>

#include <slimgrad/half.h>

#include "arrays/sparse/list_room.h"
#include "kernels/sparse/compact_columns.h"

namespace slimgrad {

ChannelLists::ChannelLists(const ConvShape& shape, const TapTiles& tiles, const Bands& bands,
                           std::int64_t slots, SparseWorkspace& workspace)
    : shape_(shape), tiles_(tiles), bands_(bands), workspace_(workspace) {
  const auto room = static_cast<std::size_t>(slots * band_room(shape, bands));
  workspace.values.reserve(room);
  workspace.offsets.reserve(room);
  workspace.starts.reserve(static_cast<std::size_t>(slots * (shape.out_channels + 1)));
}

template <typename T>
std::int64_t ChannelLists::compress(std::int64_t index, std::int64_t slot,
                                    const Images<const T>& gradient,
                                    const kernels::LoopTreatment& treatment,
                                    const PruneDraw& draw) const {
  const Bands::Band band = bands_[index];
  std::int64_t* const list_starts = starts(slot);
  list_starts[0] = slot * band_room(shape_, bands_);
  if (gradient.channels_first())
    compress_first(band, slot, gradient.data, treatment, draw);
  else
    compress_last(band, slot, gradient.data, treatment, draw);
  return list_starts[shape_.out_channels] - list_starts[0];
}

template <typename T>
void ChannelLists::compress_last(const Bands::Band& band, std::int64_t slot, const T* gradient,
                                 const kernels::LoopTreatment& treatment,
                                 const PruneDraw& draw) const {
  struct Room {
    GrowingLists lists;
    Scratch<std::int32_t> offsets;
    std::size_t bytes() const { return lists.bytes() + offsets.bytes(); }
  };
  const Pooled<Room> room;
  const std::int64_t columns = shape_.out_channels, first = band.first_pixel * columns;
  const std::int64_t step = std::min(columns, kernels::kMostColumns);
  const kernels::ListRoom lists = room->lists.reserve(step, band.pixels);
  std::int32_t* const offsets = room->offsets.reserve(static_cast<std::size_t>(band.pixels));
  find_offsets(band, band.images, offsets);
  for (std::int64_t column = 0; column < columns; column += step)
    kernels::compact_columns<T>(treatment,
                                {gradient + first, band.pixels, columns,
                                 draw.first_index + static_cast<std::uint64_t>(first)},
                                {.first_column = column,
                                 .num_columns = std::min(step, columns - column),
                                 .row_offsets = offsets,
                                 .many = draw.many(),
                                 .room = lists,
                                 .values = workspace_.values.data(),
                                 .offsets = workspace_.offsets.data(),
                                 .starts = starts(slot) + column});
}

// An image is a matrix whose rows are channels. The lists of several images are written one image
// after the other and then put together, channel by channel.
template <typename T>
void ChannelLists::compress_first(const Bands::Band& band, std::int64_t slot, const T* gradient,
                                  const kernels::LoopTreatment& treatment,
                                  const PruneDraw& draw) const {
  struct Room {
    Scratch<float> values;
    Scratch<std::int32_t> offsets, columns, rows;
    Scratch<std::int64_t> starts;
    std::size_t bytes() const {
      return values.bytes() + offsets.bytes() + columns.bytes() + rows.bytes() + starts.bytes();
    }
  };
  const Pooled<Room> room;
  const std::int64_t channels = shape_.out_channels, pixels = band.rows * shape_.x.out;
  const std::int64_t image_pixels = shape_.y.out * shape_.x.out;
  const bool direct = band.images == 1;
  kernels::CompactBlock block{};
  block.num_columns = pixels;
  block.column_offsets = room->columns.reserve(static_cast<std::size_t>(pixels));
  find_offsets(band, 1, room->columns.data());
  block.row_offsets = room->rows.reserve(static_cast<std::size_t>(channels));
  if (direct) {
    block.values = workspace_.values.data();
    block.offsets = workspace_.offsets.data();
    block.starts = starts(slot);
  } else {
    const std::size_t size =
        static_cast<std::size_t>(band.images * pixels * channels) + kernels::kCompactSlack;
    block.values = room->values.reserve(size);
    block.offsets = room->offsets.reserve(size);
    block.starts = room->starts.reserve(static_cast<std::size_t>(band.images * (channels + 1)));
    block.starts[0] = 0;
  }
  for (std::int64_t i = 0; i < band.images; ++i) {
    const std::int64_t first =
        (band.first_image + i) * channels * image_pixels + band.first_row * shape_.x.out;
    std::fill_n(room->rows.data(), channels, static_cast<std::int32_t>(i * tiles_.size(band.rows)));
    if (i > 0) {
      block.starts[channels + 1] = block.starts[channels];
      block.starts += channels + 1;
    }
    kernels::compact_rows<T>(treatment,
                             {gradient + first, channels, pixels,
                              draw.first_index + static_cast<std::uint64_t>(first), image_pixels},
                             {&block, 1});
  }
  if (direct) return;
  std::int64_t* const list_starts = starts(slot);
  std::int64_t to = list_starts[0];
  for (std::int64_t c = 0; c < channels; ++c) {
    const std::int64_t* image_starts = room->starts.data() + c;
    for (std::int64_t i = 0; i < band.images; ++i, image_starts += channels + 1) {
      // Mostly few: eights, beyond the end.
      for (std::int64_t s = image_starts[0]; s < image_starts[1]; s += 8) {
        const std::int64_t at = to + s - image_starts[0];
        std::memcpy(workspace_.values.data() + at, block.values + s, 8 * sizeof(float));
        std::memcpy(workspace_.offsets.data() + at, block.offsets + s, 8 * sizeof(std::int32_t));
      }
      to += image_starts[1] - image_starts[0];
    }
    list_starts[c + 1] = to;
  }
}

void ChannelLists::find_offsets(const Bands::Band& band, std::int64_t images,
                                std::int32_t* offsets) const {
  for (std::int64_t image = 0; image < images; ++image)
    for (std::int64_t row = 0; row < band.rows; ++row) {
      std::int64_t offset = image * tiles_.size(band.rows) + row * tiles_.line_step();
      for (std::int64_t x = 0; x < shape_.x.out; ++x, offset += tiles_.pixel_step())
        *offsets++ = static_cast<std::int32_t>(offset);
    }
}

template std::int64_t ChannelLists::compress(std::int64_t, std::int64_t, const Images<const float>&,
                                             const kernels::LoopTreatment&, const PruneDraw&) const;
template std::int64_t ChannelLists::compress(std::int64_t, std::int64_t,
                                             const Images<const BFloat16Bits>&,
                                             const kernels::LoopTreatment&, const PruneDraw&) const;
template std::int64_t ChannelLists::compress(std::int64_t, std::int64_t,
                                             const Images<const Float16Bits>&,
                                             const kernels::LoopTreatment&, const PruneDraw&) const;

}  // namespace slimgrad
