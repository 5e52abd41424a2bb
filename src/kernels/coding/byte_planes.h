// Numbers as planes of bytes: the exponents of all values, then the next bytes of all, and so on.
//
// A value is rotated left by one bit first, which moves the sign to the far end: the top byte of a
// float32 or bfloat16 is then the exponent and nothing else. Plane 0 has the top bytes. The sign of
// a gradient is a coin, so that coding it with the exponent would save nothing and double the
// alphabet. One-byte values are not rotated.
// noexcept, no allocation, any thread.
#ifndef SLIMGRAD_KERNELS_CODING_BYTE_PLANES_H_
#define SLIMGRAD_KERNELS_CODING_BYTE_PLANES_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace slimgrad::kernels {

inline constexpr std::size_t kMaxPlanes = 8;

// REQUIRES: width is 1, 2, 4 or 8; the first `width` planes have num_values bytes each.
void split_planes(const void* values, std::size_t num_values, std::size_t width,
                  const std::array<std::uint8_t*, kMaxPlanes>& planes) noexcept;
void merge_planes(const std::array<const std::uint8_t*, kMaxPlanes>& planes, std::size_t num_values,
                  std::size_t width, void* values) noexcept;

}  // namespace slimgrad::kernels

#endif  // SLIMGRAD_KERNELS_CODING_BYTE_PLANES_H_
