// Eight vectors of eight lanes as the rows of a square, transposed. For one CPU target; included
// once per target, in every pass but the last: the guard below counts passes.
#if defined(SLIMGRAD_KERNELS_SPARSE_TRANSPOSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLIMGRAD_KERNELS_SPARSE_TRANSPOSE_INL_H_
#undef SLIMGRAD_KERNELS_SPARSE_TRANSPOSE_INL_H_
#else
#define SLIMGRAD_KERNELS_SPARSE_TRANSPOSE_INL_H_
#endif

#include <hwy/highway.h>

#if HWY_MAX_BYTES >= 32

HWY_BEFORE_NAMESPACE();
namespace slimgrad::kernels {
namespace HWY_NAMESPACE {

// Pairs, then pairs of pairs inside 128-bit blocks, then blocks. D: eight lanes of 32 bits.
template <class D>
HWY_INLINE void transpose_square(D d, hwy::HWY_NAMESPACE::Vec<D> (&rows)[8]) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::RepartitionToWide<hn::RebindToUnsigned<D>> wide;
  hn::Vec<D> pairs[8], fours[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = hn::InterleaveLower(d, rows[i], rows[i + 1]);
    pairs[i + 1] = hn::InterleaveUpper(d, rows[i], rows[i + 1]);
  }
  // fours[4 h + k]: rows 4 h to 4 h + 3 of columns k and, in the upper block, k + 4.
#pragma GCC unroll 8
  for (int h = 0; h < 8; h += 4)
    for (int k = 0; k < 2; ++k) {
      const auto a = hn::BitCast(wide, pairs[h + k]), b = hn::BitCast(wide, pairs[h + 2 + k]);
      fours[h + 2 * k] = hn::BitCast(d, hn::InterleaveLower(wide, a, b));
      fours[h + 2 * k + 1] = hn::BitCast(d, hn::InterleaveUpper(wide, a, b));
    }
#pragma GCC unroll 8
  for (int k = 0; k < 4; ++k) {
    rows[k] = hn::ConcatLowerLower(d, fours[4 + k], fours[k]);
    rows[k + 4] = hn::ConcatUpperUpper(d, fours[4 + k], fours[k]);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace slimgrad::kernels
HWY_AFTER_NAMESPACE();

#endif  // HWY_MAX_BYTES >= 32

#endif  // include guard, once per target
