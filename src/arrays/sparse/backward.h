// The two products of the backward pass of a convolution or linear layer, on the survivors of a
// pruned gradient alone:
//
//   gradient of the input    dX[p] = sum over taps t, channels o  G[p - t, o] W[o, t]
//   gradient of the weight   dW[o, t] = sum over pixels p         G[p, o] X[p + t]
//
// Both sum rows of a dense matrix (of W, of X), picked and weighted by survivors
// (kernels/sparse/sums.h). The first wants the survivors by pixel, the second by channel: each
// product has a compressed form of its own, and may have a pruning of its own, written in one pass
// over G.
//
//                G                    lists by pixel, for dX     lists by channel, for dW
//            channel o
//            0 1 2 3
//   pixel 0  . a . b  \               | a b | c | d e |          | d | a | c | b e |
//         1  . . c .   | band 0       0     2   3     5          0   1   2   3     5   starts
//         2  d . . e  /
//         3  . f . .  \  band 1
//         4  g . . h  /
//
//   sum of the list | b e | at tap t:  dW[3, t] += b X[0 + t] + e X[2 + t]
//                                      for the 8, 16, ... input channels of one tile of X
//
//   survivor  an element of the pruned G that is not zero: its value, and the offset in the tile of
//             the row that it multiplies
//   channel   an output channel, hence a column of G, where it is not called an input channel
//   band      consecutive pixels of G that are compressed together: whole images, or some pixel
//             rows of one (layout.h)
//   list      the survivors of one pixel, or of one channel in a band, consecutive in memory: list
//             l is [starts[l], starts[l + 1])
//   tap       a position (ty, tx) in the kernel of the convolution; a linear layer has one
//   tile      a float32 copy of 8, 16, ... columns (input channels) of X, W or dX, with padding,
//             small enough for the cache (tap_tiles.h)
//   sum       what the survivors of a list add up to, for some columns and taps, in registers
//
// G, X and dX each have their channels last or first (arrays/sparse/images.h). Draws are numbered
// in the order of G's memory, so that the two layouts of one gradient draw differently. Tensors are
// float32, bfloat16 or float16; sums are float32. NaN and Inf survive pruning and reach the sums.
// Work is cut into tasks that `parallel` may run in any order on any threads: the result is the
// same.
#ifndef SLIMGRAD_ARRAYS_SPARSE_BACKWARD_H_
#define SLIMGRAD_ARRAYS_SPARSE_BACKWARD_H_

#include <cstdint>
#include <vector>

#include "arrays/sparse/conv_shape.h"
#include "arrays/sparse/images.h"
#include "arrays/sparse/prune_draw.h"
#include "base/parallel.h"
#include "base/scratch.h"

namespace slimgrad {

// Where W[o, c, ty, tx] or its gradient lies, in elements; c within the group.
struct WeightStrides {
  std::int64_t out, in, y, x;
};

// Lists of survivors take at most this many bytes; a larger gradient is multiplied piece by piece,
// as far as it can be cut: between images for the gradient of the input.
inline constexpr std::int64_t kMostListBytes = std::int64_t{32} << 20;

// Memory of one product, for reuse. Not for two products at a time.
struct SparseWorkspace {
  Scratch<float> values;
  Scratch<std::int32_t> offsets;
  Scratch<std::int64_t> starts;  // where a list of survivors ends and the next begins
  Scratch<float> dense;          // the packed weight, or the sums of the weight gradient
  Scratch<double> totals;        // of the bias gradient

  std::size_t bytes() const {
    return values.bytes() + offsets.bytes() + starts.bytes() + dense.bytes() + totals.bytes();
  }
};

// Counts of the pruned gradient, and what the product cost, which the choice of a way uses.
struct SparseCounts {
  std::int64_t elements = 0, survivors = 0;
  // Time that does not shrink with the survivors: pruning and packing. The caller may add to it.
  double compress_seconds = 0;
  double multiply_seconds = 0;
};

// Whether the offsets of this shape fit 32 bits; if not, use a dense product.
bool fits_sparse_backward(const ConvShape& shape);

// dx is written wholly.
template <typename T>
SparseCounts sparse_input_gradient(const ConvShape& shape, const Images<const T>& gradient,
                                   const PruneDraw& draw, const T* weight,
                                   const WeightStrides& strides, const Images<T>& dx,
                                   SparseWorkspace& workspace, const Parallel& parallel);

// dw is written wholly. bias: none, or room for out_channels sums of the pruned gradient.
template <typename T>
SparseCounts sparse_weight_gradient(const ConvShape& shape, const Images<const T>& gradient,
                                    const PruneDraw& draw, const Images<const T>& x, T* dw,
                                    const WeightStrides& strides, T* bias,
                                    SparseWorkspace& workspace, const Parallel& parallel);

}  // namespace slimgrad

#endif  // SLIMGRAD_ARRAYS_SPARSE_BACKWARD_H_
