// How the lanes of a vector of eight are moved so that those wanted come first.
#ifndef SLIMGRAD_KERNELS_SPARSE_COMPACT_ORDER_H_
#define SLIMGRAD_KERNELS_SPARSE_COMPACT_ORDER_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace slimgrad::kernels {

// For each set of lanes, as bits: which they are, from the front; then whatever. Eight Ki, of which
// a sparse gradient uses little. (Highway's Compress has such a table too, but GCC copies it to the
// stack for every vector.)
inline constexpr auto kLanes = [] {
  std::array<std::array<std::int32_t, 8>, 256> table{};
  for (std::size_t bits = 0; bits < 256; ++bits) {
    std::size_t kept = 0;
    for (std::int32_t lane = 0; lane < 8; ++lane)
      if (bits >> lane & 1) table[bits][kept++] = lane;
  }
  return table;
}();

}  // namespace slimgrad::kernels

#endif  // SLIMGRAD_KERNELS_SPARSE_COMPACT_ORDER_H_
