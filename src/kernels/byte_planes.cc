#include "kernels/byte_planes.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace slimgrad::kernels {
namespace {

// Values that one plane after another is made from or added to while they stay in the first-level
// cache. One simple loop a plane is what compilers turn into vector code.
constexpr std::size_t kChunk = 1024;

template <typename Word>
void split(const void* values, std::size_t num_values,
           const std::array<std::uint8_t*, kMaxPlanes>& planes) noexcept {
  alignas(64) Word words[kChunk];
  for (std::size_t start = 0; start < num_values; start += kChunk) {
    const std::size_t count = std::min(kChunk, num_values - start);
    std::memcpy(words, static_cast<const Word*>(values) + start, count * sizeof(Word));
    for (std::size_t i = 0; i < count; ++i) words[i] = std::rotl(words[i], 1);
    for (std::size_t p = 0; p < sizeof(Word); ++p) {
      std::uint8_t* const plane = planes[p] + start;
      const auto shift = 8 * (sizeof(Word) - 1 - p);
      for (std::size_t i = 0; i < count; ++i)
        plane[i] = static_cast<std::uint8_t>(words[i] >> shift);
    }
  }
}

template <typename Word>
void merge(const std::array<const std::uint8_t*, kMaxPlanes>& planes, std::size_t num_values,
           void* values) noexcept {
  alignas(64) Word words[kChunk];
  for (std::size_t start = 0; start < num_values; start += kChunk) {
    const std::size_t count = std::min(kChunk, num_values - start);
    std::fill_n(words, count, Word{0});
    for (std::size_t p = 0; p < sizeof(Word); ++p) {
      const std::uint8_t* const plane = planes[p] + start;
      const auto shift = 8 * (sizeof(Word) - 1 - p);
      for (std::size_t i = 0; i < count; ++i)
        words[i] = static_cast<Word>(words[i] | static_cast<Word>(Word{plane[i]} << shift));
    }
    for (std::size_t i = 0; i < count; ++i) words[i] = std::rotr(words[i], 1);
    std::memcpy(static_cast<Word*>(values) + start, words, count * sizeof(Word));
  }
}

}  // namespace

void split_planes(const void* values, std::size_t num_values, std::size_t width,
                  const std::array<std::uint8_t*, kMaxPlanes>& planes) noexcept {
  if (num_values == 0) return;
  switch (width) {
    case 1:
      std::memcpy(planes[0], values, num_values);
      return;
    case 2:
      return split<std::uint16_t>(values, num_values, planes);
    case 4:
      return split<std::uint32_t>(values, num_values, planes);
    default:
      return split<std::uint64_t>(values, num_values, planes);
  }
}

void merge_planes(const std::array<const std::uint8_t*, kMaxPlanes>& planes, std::size_t num_values,
                  std::size_t width, void* values) noexcept {
  if (num_values == 0) return;
  switch (width) {
    case 1:
      std::memcpy(values, planes[0], num_values);
      return;
    case 2:
      return merge<std::uint16_t>(planes, num_values, values);
    case 4:
      return merge<std::uint32_t>(planes, num_values, values);
    default:
      return merge<std::uint64_t>(planes, num_values, values);
  }
}

}  // namespace slimgrad::kernels
