// Copies between tensors of any float type and float32 tiles.
#ifndef SLIMGRAD_ARRAYS_SPARSE_TILE_VALUES_H_
#define SLIMGRAD_ARRAYS_SPARSE_TILE_VALUES_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <slimgrad/half.h>

#include "kernels/half_float.h"

namespace slimgrad {

using kernels::from_float;
using kernels::to_float;

// In eights, whose size the compiler knows: several times faster than a loop to `count`.
// REQUIRES: count is a multiple of 8.
inline void copy_eights(const float* from, std::int64_t count, float* to) {
  for (std::int64_t i = 0; i < count; i += 8) std::memcpy(to + i, from + i, 8 * sizeof(float));
}

// `count` values, then zeros up to `width`. REQUIRES: width is a multiple of 8.
template <typename T>
void load_tile_row(const T* from, std::int64_t count, std::int64_t width, float* to) {
  if constexpr (std::is_same_v<T, float>)
    if (count == width) return copy_eights(from, width, to);
  for (std::int64_t i = 0; i < count; ++i) to[i] = to_float(from[i]);
  std::fill(to + count, to + width, 0.0f);
}

template <typename T>
void store_tile_row(const float* from, std::int64_t count, T* to) {
  if constexpr (std::is_same_v<T, float>)
    if (count % 8 == 0) return copy_eights(from, count, to);
  for (std::int64_t i = 0; i < count; ++i) to[i] = from_float<T>(from[i]);
}

}  // namespace slimgrad

#endif  // SLIMGRAD_ARRAYS_SPARSE_TILE_VALUES_H_
