// Where lists of survivors grow before they are packed (kernels/sparse/compact_columns.h).
#ifndef SLIMGRAD_ARRAYS_SPARSE_LIST_ROOM_H_
#define SLIMGRAD_ARRAYS_SPARSE_LIST_ROOM_H_

#include <cstdint>

#include "base/scratch.h"
#include "kernels/sparse/compact_columns.h"

namespace slimgrad {

class GrowingLists {
 public:
  // Room for this number of lists of at most `size` survivors each.
  kernels::ListRoom reserve(std::int64_t lists, std::int64_t size) {
    const std::int64_t stride = list_stride(size);
    const auto room = static_cast<std::size_t>(lists * stride);
    return {.stride = stride,
            .values = values_.reserve(room),
            .offsets = offsets_.reserve(room),
            .ends = ends_.reserve(static_cast<std::size_t>(lists))};
  }
  std::size_t bytes() const { return values_.bytes() + offsets_.bytes() + ends_.bytes(); }

 private:
  // An odd number of cache lines, because lists a power of two apart would get into each other's
  // way in the cache.
  static std::int64_t list_stride(std::int64_t size) {
    constexpr std::int64_t kLine = 64 / sizeof(float);
    const auto most = size + static_cast<std::int64_t>(kernels::kCompactSlack);
    return ((most + kLine - 1) / kLine | 1) * kLine;
  }

  Scratch<float> values_;
  Scratch<std::int32_t> offsets_;
  Scratch<std::int64_t> ends_;
};

}  // namespace slimgrad

#endif  // SLIMGRAD_ARRAYS_SPARSE_LIST_ROOM_H_
