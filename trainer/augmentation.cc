#include "trainer/augmentation.h"

#include <algorithm>

#include "base/rng.h"

namespace slimgrad::trainer {

void crop_and_flip(std::span<const std::uint8_t> image, const SampleShape& shape,
                   std::uint64_t seed, std::uint32_t epoch, std::uint64_t index,
                   std::span<std::uint8_t> out) {
  constexpr std::uint32_t kPurpose = 0x61756700;  // apart from the draws of glyphs
  constexpr std::int64_t kPadding = 4;
  const PhiloxWords words = philox(
      {kPurpose, epoch, static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32)},
      static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32));
  const auto shift = [](std::uint32_t word) {
    return static_cast<std::int64_t>(std::uint64_t{word} * (2 * kPadding + 1) >> 32) - kPadding;
  };
  const std::int64_t down = shift(words[0]), right = shift(words[1]);
  const bool mirrored = (words[2] & 1) != 0;
  const std::int64_t height = shape.height, width = shape.width;
  std::ranges::fill(out, std::uint8_t{0});
  for (std::int64_t row = 0; row < shape.channels * height; ++row) {
    const std::int64_t from_y = row % height + down;
    if (from_y < 0 || from_y >= height) continue;
    const std::uint8_t* from = image.data() + (row / height * height + from_y) * width;
    std::uint8_t* to = out.data() + row * width;
    for (std::int64_t x = 0; x < width; ++x) {
      const std::int64_t from_x = (mirrored ? width - 1 - x : x) + right;
      if (from_x >= 0 && from_x < width) to[x] = from[from_x];
    }
  }
}

}  // namespace slimgrad::trainer
