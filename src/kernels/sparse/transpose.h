// Transposes a matrix: between tensors with the channels first, of any float type, and float32
// tiles, whose channels are last. What is too large for the type becomes Inf, as torch rounds.
//
// Cost: where both sides are in the cache, three vector instructions for eight elements.
#ifndef SLIMGRAD_KERNELS_SPARSE_TRANSPOSE_H_
#define SLIMGRAD_KERNELS_SPARSE_TRANSPOSE_H_

#include <cstdint>

namespace slimgrad::kernels {

// Element (r, c), r < rows and c < columns, goes from from[r * from_stride + c] to
// to[c * to_stride + r]. From or To is float, the other one float or a 16-bit type.
template <typename From, typename To>
void transpose(const From* from, std::int64_t from_stride, std::int64_t rows, std::int64_t columns,
               To* to, std::int64_t to_stride) noexcept;
template <typename From, typename To>
void transpose_scalar(const From* from, std::int64_t from_stride, std::int64_t rows,
                      std::int64_t columns, To* to, std::int64_t to_stride) noexcept;

}  // namespace slimgrad::kernels

#endif  // SLIMGRAD_KERNELS_SPARSE_TRANSPOSE_H_
