#include <algorithm>

#include "arrays/sparse/backward.h"
#include "arrays/sparse/input.h"
#include "kernels/sparse/sums.h"

namespace slimgrad {

// Measured on 3x3 kernels: with 16 channels spreading takes up to a fifth less time than gathering,
// with 32 and more it takes longer. Dilated taps of one row are no stretch of survivors, so that
// gathering cannot have them.
bool wants_spreading(const ConvShape& shape) {
  constexpr std::int64_t kFewChannels = 16;
  if (shape.taps() == 1) return false;
  return shape.group_in() <= kFewChannels || (shape.x.dilation > 1 && shape.x.taps > 1);
}

namespace {

// The most images whose survivors fit kMostListBytes, in equal pieces.
std::int64_t images_at_once(const ConvShape& shape) {
  const std::int64_t image_bytes = shape.y.out * shape.x.out * shape.out_channels *
                                   std::int64_t{sizeof(float) + sizeof(std::int32_t)};
  const std::int64_t most = std::max<std::int64_t>(1, kMostListBytes / image_bytes);
  const std::int64_t pieces = (shape.images + most - 1) / most;
  return (shape.images + pieces - 1) / pieces;
}

}  // namespace

bool fits_sparse_backward(const ConvShape& shape) {
  const std::int64_t widest = 8 * kernels::kMaxEights;
  const std::int64_t rows = (shape.x.out * shape.x.stride + shape.x.padding + 1) *
                            (shape.group_out() + 1) * (shape.y.taps + 1);
  const std::int64_t pixels = (shape.x.out * shape.x.stride + shape.x.dilation * shape.x.taps) *
                              (shape.y.stride + shape.y.dilation * shape.y.taps);
  const std::int64_t weights = shape.group_out() * shape.taps();
  constexpr std::int64_t kRoom = std::int64_t{1} << 31;
  return rows < kRoom / widest && weights < kRoom / widest && pixels < kRoom / widest &&
         shape.out_pixels() > 0 && shape.in_pixels() > 0 && shape.in_channels > 0 &&
         shape.out_channels > 0;
}

template <typename T>
SparseCounts sparse_input_gradient(const ConvShape& given, const Images<const T>& gradient,
                                   const PruneDraw& draw, const T* weight,
                                   const WeightStrides& strides, const Images<T>& dx,
                                   SparseWorkspace& workspace, const Parallel& parallel) {
  const bool whole = gradient.channels_first() || dx.channels_first();
  ConvShape shape = whole ? given : given.simplified();
  const auto way = wants_spreading(shape) ? spread_input_gradient<T> : gather_input_gradient<T>;
  const std::int64_t all = shape.images, at_once = images_at_once(shape);
  SparseCounts counts;
  for (std::int64_t first = 0; first < all; first += at_once) {
    shape.images = std::min(at_once, all - first);
    const std::int64_t skipped = first * shape.y.out * shape.x.out * shape.out_channels;
    PruneDraw part = draw;
    part.first_index += static_cast<std::uint64_t>(skipped);
    const std::int64_t input = first * shape.y.in * shape.x.in * shape.in_channels;
    const SparseCounts more = way(shape, {gradient.data + skipped, gradient.layout}, part, weight,
                                  strides, {dx.data + input, dx.layout}, workspace, parallel);
    counts.elements += more.elements;
    counts.survivors += more.survivors;
    counts.compress_seconds += more.compress_seconds;
    counts.multiply_seconds += more.multiply_seconds;
  }
  return counts;
}

template SparseCounts sparse_input_gradient(const ConvShape&, const Images<const float>&,
                                            const PruneDraw&, const float*, const WeightStrides&,
                                            const Images<float>&, SparseWorkspace&,
                                            const Parallel&);
template SparseCounts sparse_input_gradient(const ConvShape&, const Images<const BFloat16Bits>&,
                                            const PruneDraw&, const BFloat16Bits*,
                                            const WeightStrides&, const Images<BFloat16Bits>&,
                                            SparseWorkspace&, const Parallel&);
template SparseCounts sparse_input_gradient(const ConvShape&, const Images<const Float16Bits>&,
                                            const PruneDraw&, const Float16Bits*,
                                            const WeightStrides&, const Images<Float16Bits>&,
                                            SparseWorkspace&, const Parallel&);

}  // namespace slimgrad
