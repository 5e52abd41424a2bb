#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/byte_planes.cc"
#include <hwy/foreach_target.h>
// After foreach_target, as Highway asks.
#include <hwy/highway.h>

#include <bit>
#include <cstring>

#include "kernels/byte_planes.h"
#include "kernels/dispatch.h"

#ifndef SLIMGRAD_KERNELS_BYTE_PLANES_ONCE_
#define SLIMGRAD_KERNELS_BYTE_PLANES_ONCE_
namespace slimgrad::kernels::byte_planes {

using Planes = std::array<std::uint8_t*, kMaxPlanes>;
using ConstPlanes = std::array<const std::uint8_t*, kMaxPlanes>;

// The specification; also what vectors leave over.
template <typename Word>
void split_scalar(const std::uint8_t* values, std::size_t first, std::size_t num_values,
                  const Planes& planes) noexcept {
  for (std::size_t i = first; i < num_values; ++i) {
    Word word;
    std::memcpy(&word, values + i * sizeof(Word), sizeof(Word));
    word = std::rotl(word, 1);
    for (std::size_t p = 0; p < sizeof(Word); ++p)
      planes[p][i] = static_cast<std::uint8_t>(word >> 8 * (sizeof(Word) - 1 - p));
  }
}

template <typename Word>
void merge_scalar(const ConstPlanes& planes, std::size_t first, std::size_t num_values,
                  std::uint8_t* values) noexcept {
  for (std::size_t i = first; i < num_values; ++i) {
    Word word = 0;
    for (std::size_t p = 0; p < sizeof(Word); ++p)
      word = static_cast<Word>(word << 8 | planes[p][i]);
    word = std::rotr(word, 1);
    std::memcpy(values + i * sizeof(Word), &word, sizeof(Word));
  }
}

}  // namespace slimgrad::kernels::byte_planes
#endif  // SLIMGRAD_KERNELS_BYTE_PLANES_ONCE_

HWY_BEFORE_NAMESPACE();
namespace slimgrad::kernels::byte_planes::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Words are rotated vector by vector in a small buffer, which Highway then takes apart by bytes;
// the lowest byte of a little-endian word comes first there, and last among the planes. Both return
// how many values they did.
template <typename Word>
std::size_t split(const std::uint8_t* values, std::size_t num_values, const Planes& planes) {
  const hn::ScalableTag<std::uint8_t> bytes;
  const hn::ScalableTag<Word> words;
  const std::size_t step = hn::Lanes(bytes), lanes = hn::Lanes(words);
  HWY_ALIGN Word rotated[HWY_MAX_BYTES];
  const auto* const buffer = reinterpret_cast<const std::uint8_t*>(rotated);
  std::size_t i = 0;
  for (; i + step <= num_values; i += step) {
    const auto* const from = reinterpret_cast<const Word*>(values + i * sizeof(Word));
    for (std::size_t j = 0; j < step; j += lanes) {
      const auto word = hn::LoadU(words, from + j);
      hn::Store(hn::Or(hn::ShiftLeft<1>(word), hn::ShiftRight<8 * sizeof(Word) - 1>(word)), words,
                rotated + j);
    }
    hn::Vec<decltype(bytes)> a, b, c, d;
    if constexpr (sizeof(Word) == 2) {
      hn::LoadInterleaved2(bytes, buffer, a, b);
    } else {
      hn::LoadInterleaved4(bytes, buffer, a, b, c, d);
      hn::StoreU(d, bytes, planes[0] + i);
      hn::StoreU(c, bytes, planes[1] + i);
    }
    hn::StoreU(b, bytes, planes[sizeof(Word) - 2] + i);
    hn::StoreU(a, bytes, planes[sizeof(Word) - 1] + i);
  }
  return i;
}

template <typename Word>
std::size_t merge(const ConstPlanes& planes, std::size_t num_values, std::uint8_t* values) {
  const hn::ScalableTag<std::uint8_t> bytes;
  const hn::ScalableTag<Word> words;
  const std::size_t step = hn::Lanes(bytes), lanes = hn::Lanes(words);
  HWY_ALIGN Word rotated[HWY_MAX_BYTES];
  auto* const buffer = reinterpret_cast<std::uint8_t*>(rotated);
  std::size_t i = 0;
  for (; i + step <= num_values; i += step) {
    const auto a = hn::LoadU(bytes, planes[sizeof(Word) - 1] + i);
    const auto b = hn::LoadU(bytes, planes[sizeof(Word) - 2] + i);
    if constexpr (sizeof(Word) == 2)
      hn::StoreInterleaved2(a, b, bytes, buffer);
    else
      hn::StoreInterleaved4(a, b, hn::LoadU(bytes, planes[1] + i), hn::LoadU(bytes, planes[0] + i),
                            bytes, buffer);
    auto* const to = reinterpret_cast<Word*>(values + i * sizeof(Word));
    for (std::size_t j = 0; j < step; j += lanes) {
      const auto word = hn::Load(words, rotated + j);
      hn::StoreU(hn::Or(hn::ShiftRight<1>(word), hn::ShiftLeft<8 * sizeof(Word) - 1>(word)), words,
                 to + j);
    }
  }
  return i;
}

std::size_t split2(const std::uint8_t* values, std::size_t num_values, const Planes& planes) {
  return split<std::uint16_t>(values, num_values, planes);
}
std::size_t split4(const std::uint8_t* values, std::size_t num_values, const Planes& planes) {
  return split<std::uint32_t>(values, num_values, planes);
}
std::size_t merge2(const ConstPlanes& planes, std::size_t num_values, std::uint8_t* values) {
  return merge<std::uint16_t>(planes, num_values, values);
}
std::size_t merge4(const ConstPlanes& planes, std::size_t num_values, std::uint8_t* values) {
  return merge<std::uint32_t>(planes, num_values, values);
}

}  // namespace slimgrad::kernels::byte_planes::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace slimgrad::kernels {
namespace byte_planes {
HWY_EXPORT(split2);
HWY_EXPORT(split4);
HWY_EXPORT(merge2);
HWY_EXPORT(merge4);
}  // namespace byte_planes

void split_planes(const void* values, std::size_t num_values, std::size_t width,
                  const std::array<std::uint8_t*, kMaxPlanes>& planes) noexcept {
  using namespace byte_planes;
  if (num_values == 0) return;
  const auto* const from = static_cast<const std::uint8_t*>(values);
  std::size_t done = 0;
  switch (width) {
    case 1:
      std::memcpy(planes[0], from, num_values);
      return;
    case 2:
      if (!use_scalar()) done = HWY_DYNAMIC_DISPATCH(split2)(from, num_values, planes);
      return split_scalar<std::uint16_t>(from, done, num_values, planes);
    case 4:
      if (!use_scalar()) done = HWY_DYNAMIC_DISPATCH(split4)(from, num_values, planes);
      return split_scalar<std::uint32_t>(from, done, num_values, planes);
    default:
      return split_scalar<std::uint64_t>(from, 0, num_values, planes);
  }
}

void merge_planes(const std::array<const std::uint8_t*, kMaxPlanes>& planes, std::size_t num_values,
                  std::size_t width, void* values) noexcept {
  using namespace byte_planes;
  if (num_values == 0) return;
  auto* const to = static_cast<std::uint8_t*>(values);
  std::size_t done = 0;
  switch (width) {
    case 1:
      std::memcpy(to, planes[0], num_values);
      return;
    case 2:
      if (!use_scalar()) done = HWY_DYNAMIC_DISPATCH(merge2)(planes, num_values, to);
      return merge_scalar<std::uint16_t>(planes, done, num_values, to);
    case 4:
      if (!use_scalar()) done = HWY_DYNAMIC_DISPATCH(merge4)(planes, num_values, to);
      return merge_scalar<std::uint32_t>(planes, done, num_values, to);
    default:
      return merge_scalar<std::uint64_t>(planes, 0, num_values, to);
  }
}

}  // namespace slimgrad::kernels
#endif  // HWY_ONCE
