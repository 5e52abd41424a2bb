// Two ways to the gradient of the input. Both are the sum over survivors that
// arrays/sparse/backward.h names; they differ in the order of their loops.
//
//   gather   every input pixel sums what reached it: for many channels
//   spread   every gradient pixel adds to the pixels that it reached: for few, and dilated rows
//
// A gathered sum is wide and written once, but has to look into several rows of lists, however
// empty they are; a survivor is met once for every tap. Spread sums meet a survivor once for all
// taps and skip pixels without any, but are narrow, and load and store their totals.
#ifndef SLIMGRAD_ARRAYS_SPARSE_INPUT_H_
#define SLIMGRAD_ARRAYS_SPARSE_INPUT_H_

#include "arrays/sparse/backward.h"
#include "arrays/sparse/tile_values.h"

namespace slimgrad {

// The pixels that one task compresses, if they are not too large.
inline constexpr std::int64_t kCompressedPixels = 512;

// Which of the two.
bool wants_spreading(const ConvShape& shape);
// The widest tile of columns that is gathered, in vectors of eight.
inline constexpr int kMaxInputEights = 8;

// REQUIRES: x.dilation is 1, or there is one tap.
template <typename T>
SparseCounts gather_input_gradient(const ConvShape& shape, const Images<const T>& gradient,
                                   const PruneDraw& draw, const T* weight,
                                   const WeightStrides& strides, const Images<T>& dx,
                                   SparseWorkspace& workspace, const Parallel& parallel);
template <typename T>
SparseCounts spread_input_gradient(const ConvShape& shape, const Images<const T>& gradient,
                                   const PruneDraw& draw, const T* weight,
                                   const WeightStrides& strides, const Images<T>& dx,
                                   SparseWorkspace& workspace, const Parallel& parallel);

// One tap of one output channel: `count` input channels, then zeros up to `width`.
template <typename T>
void load_weights(const T* from, std::int64_t step, std::int64_t count, std::int64_t width,
                  float* to) {
  if (step == 1) return load_tile_row(from, count, width, to);
  for (std::int64_t c = 0; c < count; ++c) to[c] = to_float(from[c * step]);
  std::fill(to + count, to + width, 0.0f);
}

}  // namespace slimgrad

#endif  // SLIMGRAD_ARRAYS_SPARSE_INPUT_H_
