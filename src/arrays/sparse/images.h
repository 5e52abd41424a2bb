// A batch of images in memory. Either layout is read and written as it is: to copy a tensor into
// the other one costs as much as a very sparse product.
#ifndef SLIMGRAD_ARRAYS_SPARSE_IMAGES_H_
#define SLIMGRAD_ARRAYS_SPARSE_IMAGES_H_

#include <cstdint>
#include <type_traits>

#include "arrays/sparse/tile_values.h"
#include "kernels/sparse/transpose.h"

namespace slimgrad {

enum class ImageLayout {
  kChannelsLast,   // image, row, pixel, channel: a matrix with a row for each pixel
  kChannelsFirst,  // image, channel, row, pixel: for each image a matrix with a row for each
                   // channel
};

template <typename T>
struct Images {
  T* data;
  ImageLayout layout = ImageLayout::kChannelsLast;

  bool channels_first() const { return layout == ImageLayout::kChannelsFirst; }
};

// Writes `count` channels, from first_channel on, of the pixels from first_pixel on, which are
// counted over all images. `from` has a row for each pixel.
struct PixelRange {
  std::int64_t first_pixel, pixels;
  std::int64_t first_channel, channels;
};
template <typename T>
void store_pixels(const float* from, std::int64_t stride, const PixelRange& range,
                  std::int64_t image_pixels, std::int64_t all_channels, const Images<T>& to) {
  if (!to.channels_first()) {
    T* out = to.data + range.first_pixel * all_channels + range.first_channel;
    for (std::int64_t p = 0; p < range.pixels; ++p, from += stride, out += all_channels)
      store_tile_row(from, range.channels, out);
    return;
  }
  for (std::int64_t done = 0; done < range.pixels;) {
    const std::int64_t image = (range.first_pixel + done) / image_pixels;
    const std::int64_t at = (range.first_pixel + done) % image_pixels;
    const std::int64_t count = std::min(range.pixels - done, image_pixels - at);
    kernels::transpose(from + done * stride, stride, count, range.channels,
                       to.data + (image * all_channels + range.first_channel) * image_pixels + at,
                       image_pixels);
    done += count;
  }
}

}  // namespace slimgrad

#endif  // SLIMGRAD_ARRAYS_SPARSE_IMAGES_H_
