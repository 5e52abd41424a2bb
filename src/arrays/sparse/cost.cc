// The constants below are nanoseconds of two threads of an AMD Zen 5 (AVX-512 with bfloat16
// products) with torch 2.13, found by
//
//   python -m bench.cost_model --from results/cost_model.json results/cost_model_fresh.json --fit
//
// as non-negative least squares of relative errors over the layers of bench/layer_shapes.py, both
// layouts and both types. The two records are of the same machine, on which sparse products took
// 1.2 times as long in one hour as in another, and dense ones equally long. How much they lose is
// in docs/faster_backward.md. To fit them anew, paste what the command prints;
// tests/arrays/sparse/cost_test.cc wants them sane.
#include "arrays/sparse/cost.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "arrays/sparse/layout.h"
#include "arrays/sparse/tap_tiles.h"

namespace slimgrad {
namespace {

struct Sizes {
  explicit Sizes(const ConvShape& s)
      : gradient(static_cast<double>(s.out_pixels() * s.out_channels)),
        input(static_cast<double>(s.in_pixels() * s.in_channels)),
        weight(static_cast<double>(s.out_channels * s.group_in() * s.taps())) {}

  double gradient, input, weight;
};

// ---- dense products --------------------------------------------------------------------------

bool is_depthwise(const ConvShape& s) {
  return s.groups > 1 && s.group_in() == 1 && s.group_out() == 1;
}

// Multiply-adds. Channels of convolutions fill vectors of 16; but few channels of the input, of a
// first layer, do without in the product for the weight.
double multiply_adds(const PricedProduct& p) {
  constexpr std::int64_t kLanes = 16;
  const auto padded = [](std::int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; };
  const ConvShape& s = p.shape;
  std::int64_t in = s.group_in(), out = s.group_out();
  if (!p.is_linear_layer && !is_depthwise(s)) {
    if (p.product == Product::kInput || in > kLanes) in = padded(in);
    out = padded(out);
  }
  return static_cast<double>(s.out_pixels()) * static_cast<double>(s.groups * in * out * s.taps());
}

// Multiply-adds of depthwise products for which torch's library has no vector kernel: the weight's
// with more than 3x3 taps, and the input's of a half type with strides. The latter is a loop over
// images and channels, each turn of which costs as much as some 1500 multiply-adds besides.
double slow_multiply_adds(const PricedProduct& p) {
  constexpr std::int64_t kTurn = 1500;
  const ConvShape& s = p.shape;
  if (!is_depthwise(s)) return 0;
  if (p.product == Product::kWeight) return s.taps() > 9 ? multiply_adds(p) : 0;
  const bool strided = s.y.stride > 1 || s.x.stride > 1;
  if (!strided || p.type == DType::kFloat32) return 0;
  return multiply_adds(p) + static_cast<double>(kTurn * s.images * s.groups);
}

// The call; multiply-adds of a convolution; of a matrix product; the values of gradient and input,
// which other depthwise products wait for; those of the weight; what is laid out anew if the input
// is contiguous; multiply-adds without vectors; and these if the input is contiguous.
constexpr std::size_t kDenseTerms = 8;
using DenseTerms = std::array<double, kDenseTerms>;

DenseTerms dense_terms(const PricedProduct& p) {
  const Sizes sizes(p.shape);
  const double products = is_depthwise(p.shape) ? 0 : multiply_adds(p);
  const double touched = sizes.gradient + sizes.input, slow = slow_multiply_adds(p);
  return {1,
          p.is_linear_layer ? 0 : products,
          p.is_linear_layer ? products : 0,
          touched,
          sizes.weight,
          p.channels_last ? 0 : touched,
          slow,
          p.channels_last ? 0 : slow};
}

// ---- sparse products -------------------------------------------------------------------------

// Whatever survives: the call with its plan and sample; a pass over the gradient; for the weight
// the input in padded tiles, for the input the sums that begin and end; the weight in padded tiles;
// and what is transposed on its way if the input is contiguous.
constexpr std::size_t kCompressTerms = 5;
// If all did: for the weight vectors of eight that are multiplied, and iterations of the loop over
// survivors; for the input both as one, as column_tiles() weighs them, and the rows of lists that a
// sum looks into, next to nothing for empty ones.
constexpr std::size_t kMultiplyTerms = 2;
using CompressTerms = std::array<double, kCompressTerms>;
using MultiplyTerms = std::array<double, kMultiplyTerms>;

struct SparseTerms {
  CompressTerms compress;
  MultiplyTerms multiply;
  double weights;  // in tiles
};

SparseTerms weight_terms(const PricedProduct& p) {
  const ConvShape& s = p.shape;
  const Sizes sizes(s);
  const TapTiles tiles(s.simplified());
  double iterations = 0;  // for one survivor and tile
  tiles.for_taps([&](const TapTiles::Taps&) { ++iterations; });
  const auto count = static_cast<double>(tiles.count());
  const auto tile_width = static_cast<double>(tiles.pixel_size());
  const double weights = static_cast<double>(s.out_channels * s.taps()) * count * tile_width;
  return {.compress = {1, sizes.gradient,
                       static_cast<double>(s.in_pixels() * s.groups) * count * tile_width, weights,
                       p.channels_last ? 0 : sizes.gradient + sizes.input},
          .multiply = {sizes.gradient * count * tile_width / 8 * static_cast<double>(s.taps()),
                       sizes.gradient * count * iterations},
          .weights = weights};
}

SparseTerms input_terms(const PricedProduct& p) {
  const ConvShape& s = p.shape;
  const Sizes sizes(s);
  const ColumnTiles tiles = column_tiles(s.group_in(), kMaxInputEights);
  const auto count = static_cast<double>(tiles.count);
  const double weights = static_cast<double>(s.out_channels * s.taps() * tiles.width()) * count;
  // A dilated row has a pass for every tap.
  const std::int64_t passes = s.x.dilation > 1 ? s.x.taps : 1;
  const double sums = static_cast<double>(s.in_pixels() * s.groups * passes) * count;
  return {
      .compress = {1, sizes.gradient, sums, weights,
                   p.channels_last ? 0 : sizes.gradient + sizes.input},
      .multiply = {sizes.gradient * count * (tiles.eights + 1.5) * static_cast<double>(s.taps()),
                   sums * static_cast<double>(s.y.taps) / static_cast<double>(s.y.stride)},
      .weights = weights};
}

SparseTerms sparse_terms(const PricedProduct& p) {
  return p.product == Product::kWeight ? weight_terms(p) : input_terms(p);
}

// What no constant is fitted for: tensors with gaps are copied first, and a workspace that is too
// large to be kept is new memory in every pass, a page fault of about a microsecond for 1024
// values.
double copied_and_fresh(const PricedProduct& p, double weights) {
  constexpr double kCopyNanoseconds = 0.6, kFreshNanoseconds = 1;
  constexpr double kKept = (48 << 20) / sizeof(float);  // about: the lists are kept, too
  return kCopyNanoseconds * static_cast<double>(p.copied) +
         (weights > kKept ? kFreshNanoseconds * weights : 0);
}

// ---- constants -------------------------------------------------------------------------------

// [float32, bfloat16][product]
constexpr DenseTerms kDense[2][2] = {
    // float32
    {{{2.179e+04, 0.003321, 0.007702, 0.0395, 0.7033, 0.08286, 0.06234, 0.2536}},
     {{2.706e+04, 0.003321, 0.007766, 0.06429, 0.2298, 0.09939, 0, 0}}},
    // bfloat16
    {{{4.264e+04, 0.002, 0.001616, 0.03061, 0.4474, 0.1234, 0.1135, 0.2253}},
     {{3.467e+04, 0.001702, 0.001729, 0.03438, 0.1268, 0.1346, 1.008, 0.02531}}},
};

// torch has no float16 kernels for these CPUs. What it does instead took 3 to 60 times as long as
// float32, in layers small enough to be timed (--float16): sparse products are faster from 0.4 on,
// but for the inputs of depthwise layers.
constexpr double kFloat16Slower = 16;

struct SparseConstants {
  CompressTerms compress;
  MultiplyTerms multiply;
};
// [product]. For all types: values are converted as they are read, and summed as float32.
constexpr SparseConstants kSparse[2] = {
    {{{1.053e+05, 0.2182, 0.2274, 0.3715, 0}}, {{0.01623, 0.5572}}},
    {{{1.291e+05, 0.4142, 2.395, 0.2692, 0.05826}}, {{0.07078, 4.469}}},
};

template <std::size_t n>
double priced(const std::array<double, n>& terms, const std::array<double, n>& constants) {
  return std::inner_product(terms.begin(), terms.end(), constants.begin(), 0.0);
}

double dense_price(const PricedProduct& p) {
  const DenseTerms& constants =
      kDense[p.type == DType::kBFloat16 ? 1 : 0][static_cast<int>(p.product)];
  return (p.type == DType::kFloat16 ? kFloat16Slower : 1) * priced(dense_terms(p), constants);
}

}  // namespace

double ProductCost::break_even() const {
  const double spare = dense - compress;
  if (spare <= 0) return 1;
  if (multiply <= spare) return 0;
  return std::min(1.0, std::ceil(1000 * (1 - spare / multiply)) / 1000);
}

ProductCost predict_cost(const PricedProduct& p) {
  const SparseTerms terms = sparse_terms(p);
  const SparseConstants& constants = kSparse[static_cast<int>(p.product)];
  return {
      .dense = dense_price(p),
      .compress = priced(terms.compress, constants.compress) + copied_and_fresh(p, terms.weights),
      .multiply = priced(terms.multiply, constants.multiply)};
}

CostTerms cost_terms(const PricedProduct& p) {
  const auto list = [](const auto& terms) { return std::vector(terms.begin(), terms.end()); };
  const SparseTerms terms = sparse_terms(p);
  return {.dense = list(dense_terms(p)),
          .compress = list(terms.compress),
          .multiply = list(terms.multiply),
          .other = copied_and_fresh(p, terms.weights)};
}

}  // namespace slimgrad
