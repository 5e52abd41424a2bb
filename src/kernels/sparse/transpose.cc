#include "kernels/sparse/transpose.h"

#include <slimgrad/half.h>

#include "kernels/dispatch.h"
#include "kernels/half_float.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/sparse/transpose.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/highway.h>

#include "kernels/half_float-inl.h"
#include "kernels/sparse/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace slimgrad::kernels {
namespace HWY_NAMESPACE {

// Squares of eight by eight, and what is left at two sides one by one.
template <typename From, typename To>
HWY_INLINE void transpose_matrix(const From* from, std::int64_t from_stride, std::int64_t rows,
                                 std::int64_t columns, To* to, std::int64_t to_stride) {
  std::int64_t whole_rows = 0, whole_columns = 0;
#if HWY_TARGET != HWY_SCALAR && HWY_MAX_BYTES >= 32
  const hn::CappedTag<float, 8> f32;
  whole_rows = rows / 8 * 8;
  whole_columns = columns / 8 * 8;
  for (std::int64_t r = 0; r < whole_rows; r += 8)
    for (std::int64_t c = 0; c < whole_columns; c += 8) {
      hn::Vec<hn::CappedTag<float, 8>> square[8];
      const From* const x = from + r * from_stride + c;
      To* const y = to + c * to_stride + r;
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) square[i] = load_floats(f32, x + i * from_stride);
      transpose_square(f32, square);
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) store_floats(f32, square[i], y + i * to_stride);
    }
#endif
  transpose_scalar(from + whole_columns, from_stride, whole_rows, columns - whole_columns,
                   to + whole_columns * to_stride, to_stride);
  transpose_scalar(from + whole_rows * from_stride, from_stride, rows - whole_rows, columns,
                   to + whole_rows, to_stride);
}

void transpose_float32(const float* from, std::int64_t from_stride, std::int64_t rows,
                       std::int64_t columns, float* to, std::int64_t to_stride) {
  transpose_matrix(from, from_stride, rows, columns, to, to_stride);
}
void transpose_from_bfloat16(const BFloat16Bits* from, std::int64_t from_stride, std::int64_t rows,
                             std::int64_t columns, float* to, std::int64_t to_stride) {
  transpose_matrix(from, from_stride, rows, columns, to, to_stride);
}
void transpose_to_bfloat16(const float* from, std::int64_t from_stride, std::int64_t rows,
                           std::int64_t columns, BFloat16Bits* to, std::int64_t to_stride) {
  transpose_matrix(from, from_stride, rows, columns, to, to_stride);
}
void transpose_from_float16(const Float16Bits* from, std::int64_t from_stride, std::int64_t rows,
                            std::int64_t columns, float* to, std::int64_t to_stride) {
  transpose_matrix(from, from_stride, rows, columns, to, to_stride);
}
void transpose_to_float16(const float* from, std::int64_t from_stride, std::int64_t rows,
                          std::int64_t columns, Float16Bits* to, std::int64_t to_stride) {
  transpose_matrix(from, from_stride, rows, columns, to, to_stride);
}

}  // namespace HWY_NAMESPACE
}  // namespace slimgrad::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace slimgrad::kernels {
namespace {

HWY_EXPORT(transpose_float32);
HWY_EXPORT(transpose_from_bfloat16);
HWY_EXPORT(transpose_to_bfloat16);
HWY_EXPORT(transpose_from_float16);
HWY_EXPORT(transpose_to_float16);

}  // namespace

template <typename From, typename To>
void transpose_scalar(const From* from, std::int64_t from_stride, std::int64_t rows,
                      std::int64_t columns, To* to, std::int64_t to_stride) noexcept {
  for (std::int64_t c = 0; c < columns; ++c)
    for (std::int64_t r = 0; r < rows; ++r)
      to[c * to_stride + r] = from_float<To>(to_float(from[r * from_stride + c]));
}

#define SLIMGRAD_TRANSPOSE(From, To, kernel)                                                    \
  template void transpose_scalar(const From*, std::int64_t, std::int64_t, std::int64_t, To*,    \
                                 std::int64_t) noexcept;                                        \
  template <>                                                                                   \
  void transpose(const From* from, std::int64_t from_stride, std::int64_t rows,                 \
                 std::int64_t columns, To* to, std::int64_t to_stride) noexcept {               \
    if (use_scalar()) return transpose_scalar(from, from_stride, rows, columns, to, to_stride); \
    HWY_DYNAMIC_DISPATCH(kernel)(from, from_stride, rows, columns, to, to_stride);              \
  }
SLIMGRAD_TRANSPOSE(float, float, transpose_float32)
SLIMGRAD_TRANSPOSE(BFloat16Bits, float, transpose_from_bfloat16)
SLIMGRAD_TRANSPOSE(float, BFloat16Bits, transpose_to_bfloat16)
SLIMGRAD_TRANSPOSE(Float16Bits, float, transpose_from_float16)
SLIMGRAD_TRANSPOSE(float, Float16Bits, transpose_to_float16)
#undef SLIMGRAD_TRANSPOSE

}  // namespace slimgrad::kernels
#endif  // HWY_ONCE
