#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/coding/byte_planes.cc"
#include <hwy/foreach_target.h>
// After foreach_target, as Highway asks.
#include <hwy/highway.h>

#include <bit>
#include <cstring>

#include "kernels/coding/byte_planes.h"
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

using D8 = hn::ScalableTag<std::uint8_t>;
using V8 = hn::Vec<D8>;

// A word is rotated as bytes: each gives a bit to its neighbour. Both functions return how many
// values they did.
HWY_INLINE V8 left(V8 byte, V8 lower) {
  return hn::Or(hn::Add(byte, byte), hn::ShiftRight<7>(lower));
}
HWY_INLINE V8 right(V8 byte, V8 upper) {
  return hn::Or(hn::ShiftRight<1>(byte), hn::ShiftLeft<7>(upper));
}

template <typename Word>
std::size_t split(const std::uint8_t* values, std::size_t num_values, const Planes& planes) {
  const D8 d;
  const std::size_t step = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + step <= num_values; i += step) {
    V8 b0, b1, b2, b3;  // the lowest byte of a little-endian word comes first
    if constexpr (sizeof(Word) == 2) {
      hn::LoadInterleaved2(d, values + 2 * i, b0, b1);
      hn::StoreU(left(b1, b0), d, planes[0] + i);
      hn::StoreU(left(b0, b1), d, planes[1] + i);
    } else {
      hn::LoadInterleaved4(d, values + 4 * i, b0, b1, b2, b3);
      hn::StoreU(left(b3, b2), d, planes[0] + i);
      hn::StoreU(left(b2, b1), d, planes[1] + i);
      hn::StoreU(left(b1, b0), d, planes[2] + i);
      hn::StoreU(left(b0, b3), d, planes[3] + i);
    }
  }
  return i;
}

template <typename Word>
std::size_t merge(const ConstPlanes& planes, std::size_t num_values, std::uint8_t* values) {
  const D8 d;
  const std::size_t step = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + step <= num_values; i += step) {
    const V8 p0 = hn::LoadU(d, planes[0] + i), p1 = hn::LoadU(d, planes[1] + i);
    if constexpr (sizeof(Word) == 2) {
      hn::StoreInterleaved2(right(p1, p0), right(p0, p1), d, values + 2 * i);
    } else {
      const V8 p2 = hn::LoadU(d, planes[2] + i), p3 = hn::LoadU(d, planes[3] + i);
      hn::StoreInterleaved4(right(p3, p2), right(p2, p1), right(p1, p0), right(p0, p3), d,
                            values + 4 * i);
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
