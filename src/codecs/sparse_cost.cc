// The constants below are nanoseconds of two threads of an AMD EPYC (AVX-512 with bfloat16
// products) with torch 2.13, found by
//
//   python -m bench.cost_model --from results/cost_model.json --fit
//
// as non-negative least squares of relative errors over the layers of bench/layer_shapes.py, both
// layouts and both types. How often they misjudge is in docs/benchmarks.md. Whoever fits them anew
// pastes what the command prints; tests/codecs/sparse_cost_test.cc wants them sane.
#include "codecs/sparse_cost.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "codecs/sparse_input.h"
#include "codecs/sparse_layout.h"
#include "codecs/tap_tiles.h"

namespace slimgrad {
namespace {

// ---- dense products --------------------------------------------------------------------------

// What torch's library has kernels of their own for.
enum DenseKind {
  kConvolution,
  kLinear,
  kDepthwise,
  kStridedDepthwise,
  kLargeDepthwise,  // more than 3x3
  kDenseKinds
};

DenseKind dense_kind(const PricedProduct& p) {
  const ConvShape& s = p.shape;
  if (p.is_linear_layer) return kLinear;
  if (s.groups == 1 || s.group_in() > 1 || s.group_out() > 1) return kConvolution;
  if (s.taps() > 9) return kLargeDepthwise;
  return s.y.stride > 1 || s.x.stride > 1 ? kStridedDepthwise : kDepthwise;
}

// The call; multiply-adds; the values of gradient and input; those of the weight; what is laid out
// anew if the input is contiguous; and its multiply-adds then.
constexpr std::size_t kDenseTerms = 6;
using DenseTerms = std::array<double, kDenseTerms>;

struct Sizes {
  explicit Sizes(const ConvShape& s)
      : gradient(static_cast<double>(s.out_pixels() * s.out_channels)),
        input(static_cast<double>(s.in_pixels() * s.in_channels)),
        weight(static_cast<double>(s.out_channels * s.group_in() * s.taps())) {}

  double gradient, input, weight;
};

// Channels of convolutions fill vectors of 16; but few channels of the input, of a first layer, do
// without in the product for the weight.
double dense_products(const PricedProduct& p) {
  constexpr std::int64_t kLanes = 16;
  const auto padded = [](std::int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; };
  const ConvShape& s = p.shape;
  std::int64_t in = s.group_in(), out = s.group_out();
  if (dense_kind(p) == kConvolution) {
    if (p.product == Product::kInput || in > kLanes) in = padded(in);
    out = padded(out);
  }
  return static_cast<double>(s.out_pixels()) * static_cast<double>(s.groups * in * out * s.taps());
}

DenseTerms dense_terms(const PricedProduct& p) {
  const Sizes sizes(p.shape);
  const double products = dense_products(p), touched = sizes.gradient + sizes.input;
  return {1,
          products,
          touched,
          sizes.weight,
          p.channels_last ? 0 : touched,
          p.channels_last ? 0 : products};
}

// ---- sparse products -------------------------------------------------------------------------

// Ours: for the weight with one tap or several, for the input without neighbours, gathered, spread
// (codecs/sparse_input.h); and with groups, each of which has tiles and lists of its own.
enum SparseKind {
  kWeightOneTap,
  kWeightTaps,
  kInputPixels,
  kInputGathered,
  kInputSpread,
  kWeightGroups,
  kInputGroups,
  kSparseKinds
};

SparseKind sparse_kind(const PricedProduct& p) {
  const ConvShape& s = p.shape;
  if (p.product == Product::kWeight)
    return s.groups > 1 ? kWeightGroups : s.taps() == 1 ? kWeightOneTap : kWeightTaps;
  if (s.groups > 1) return kInputGroups;
  return s.is_linear() ? kInputPixels : wants_spreading(s) ? kInputSpread : kInputGathered;
}

// Whatever survives: the call with its plan; the sample; a pass over the gradient; the input and
// the weight in padded tiles; sums or lists that begin and end; what is in another layout.
constexpr std::size_t kCompressTerms = 7;
// If all did: vectors of eight that are multiplied, and turns of the loop over survivors.
constexpr std::size_t kMultiplyTerms = 2;
using CompressTerms = std::array<double, kCompressTerms>;
using MultiplyTerms = std::array<double, kMultiplyTerms>;

// The input's channels of a group in tiles, as the kernels cut them.
struct Cut {
  double tiles, eights;
  double turns;  // of the loop for one survivor and tile
};
Cut cut_of(const PricedProduct& p) {
  if (p.product == Product::kInput && !wants_spreading(p.shape)) {
    const ColumnTiles tiles = column_tiles(p.shape.group_in(), kMaxInputEights);
    return {static_cast<double>(tiles.count), static_cast<double>(tiles.eights),
            static_cast<double>(p.shape.taps())};
  }
  const TapTiles tiles(p.shape.simplified());
  double turns = 0;
  tiles.for_taps([&](const TapTiles::Taps&) { ++turns; });
  return {static_cast<double>(tiles.count()), static_cast<double>(tiles.pixel_size()) / 8, turns};
}

// Values that the sparse way has to lay out anew, in a copy or while it reads and writes images
// whose channels come first.
double turned_values(const PricedProduct& p) {
  const Sizes sizes(p.shape);
  const auto copied = static_cast<double>(p.copied);
  return p.channels_last ? copied : std::max(copied, sizes.gradient + sizes.input);
}

CompressTerms compress_terms(const PricedProduct& p) {
  const ConvShape& s = p.shape;
  const Sizes sizes(s);
  const Cut cut = cut_of(p);
  const double width = 8 * cut.eights * cut.tiles;
  const double inputs = static_cast<double>(s.in_pixels() * s.groups);
  constexpr double kSampled = 1 << 16;  // what compress() samples
  constexpr double kPixelsAList = 64;   // about; lists for the weight are a channel's in a band
  double sums = inputs * cut.tiles;     // gathered, one for every pixel
  if (p.product == Product::kWeight)
    sums = sizes.gradient * cut.tiles * cut.turns / kPixelsAList;
  else if (wants_spreading(p.shape))
    sums = sizes.gradient * cut.tiles * cut.turns;
  return {1,
          std::min(kSampled, sizes.gradient),
          sizes.gradient,
          inputs * width,
          static_cast<double>(s.out_channels * s.taps()) * width,
          sums,
          turned_values(p)};
}

MultiplyTerms multiply_terms(const PricedProduct& p) {
  const Cut cut = cut_of(p);
  const double tiles = Sizes(p.shape).gradient * cut.tiles;
  return {tiles * cut.eights * static_cast<double>(p.shape.taps()), tiles * cut.turns};
}

// ---- constants -------------------------------------------------------------------------------

constexpr std::size_t kTypes = 3;  // float32, bfloat16, float16

// [type][product][kind]
constexpr DenseTerms kDense[kTypes][2][kDenseKinds] = {
    // float32
    {{{{0, 0.009661, 0.09026, 1.558, 0.2481, 0}},
      {{1.253e+04, 0.00949, 0.1409, 1.444, 0, 0}},
      {{6.959e+04, 0, 0.2412, 12.3, 0.6283, 0}},
      {{1.296e+05, 0, 0.1528, 0, 0.1805, 0}},
      {{5.116e+04, 0.1196, 0.5841, 45.49, 7.001, 0}}},
     {{{0, 0.008685, 0.2037, 0.6368, 0.2817, 0}},
      {{8247, 0.01034, 0.186, 0.37, 0, 0}},
      {{2.736e+05, 0.06213, 0, 8.713, 0.1198, 0}},
      {{1.667e+05, 0, 0.3294, 0, 0.2414, 0}},
      {{8.773e+04, 0.007222, 0.5811, 4.313, 0.2221, 0}}}},
    // bfloat16
    {{{{4.878e+04, 0.004907, 0.1313, 0.9244, 0.1236, 0}},
      {{4.422e+04, 0.004998, 0.07696, 0.119, 0, 0}},
      {{1.732e+05, 0.02708, 0, 7.153, 0.3944, 0}},
      {{1.301e+05, 0.08103, 0, 0, 0.0842, 0}},
      {{5.554e+04, 0, 5.247, 0, 2.848, 0}}},
     {{{2.843e+04, 0.0044, 0.1184, 0.3803, 0.1888, 0}},
      {{3.89e+04, 0.004721, 0.05105, 0.1538, 0, 0}},
      {{2.44e+05, 0, 0.1515, 16.77, 0.1597, 0}},
      {{0, 1.999, 0, 1828, 0.4835, 0}},
      {{1.798e+05, 0.01476, 0.1736, 8.457, 0.1894, 0}}}},
    // float16
    {{{{0, 0.01124, 0.9472, 267.5, 0, 0}},
      {{0, 0.3014, 0, 4.28, 0, 0}},
      {{0, 1.28, 0, 2405, 0, 0}},
      {{1.892e+06, 2.871, 0, 0, 0, 0}},
      {{0, 0.2973, 2.215, 313.4, 0, 0}}},
     {{{4.423e+06, 0, 2.361, 116.1, 0, 0}},
      {{0, 0.5011, 0, 53.16, 0, 0}},
      {{0, 0.7546, 0, 1471, 0, 0}},
      {{0, 1.424, 0, 694.8, 0, 0}},
      {{0, 0.8969, 0, 68.62, 0, 0}}}},
};

struct SparseConstants {
  CompressTerms compress;
  MultiplyTerms multiply;
};
// [type][kind]
constexpr SparseConstants kSparse[kTypes][kSparseKinds] = {
    // float32
    {{{{1.104e+05, 0, 0.4488, 0.05012, 0.8671, 0.4342, 0.5936}}, {{0.1181, 0.06123}}},
     {{{0, 0.9242, 0.3838, 0.2461, 1.332, 1.084, 0.5546}}, {{0.08755, 0.2678}}},
     {{{1.286e+05, 0, 0.2955, 0, 0.643, 2.06, 0.7394}}, {{0.1007, 0.3486}}},
     {{{0, 0.4701, 0.307, 0, 0.9253, 29.64, 0.6867}}, {{0.1212, 0}}},
     {{{0, 4.542, 0.3306, 0, 0, 0.04428, 0.5492}}, {{0.02677, 1.291}}},
     {{{6.639e+04, 0, 0.09462, 0.4203, 1.527, 0, 0.4586}}, {{0.08409, 0.3881}}},
     {{{2.503e+05, 0, 0.5209, 0.625, 14.92, 0.2271, 0}}, {{0.08321, 3.149}}}},
    // bfloat16
    {{{{1.104e+05, 0, 0.3951, 0.07738, 0.8886, 0, 0.2974}}, {{0.103, 0.1948}}},
     {{{0, 1.862, 0.3178, 0.2346, 0.9369, 0.6873, 0.3734}}, {{0.07287, 0.3685}}},
     {{{1.166e+05, 0, 0.3158, 0.1601, 0.6842, 1.606, 0.4491}}, {{0.08712, 0.3599}}},
     {{{0, 0.625, 0.3566, 0, 0.8149, 31.49, 0.4137}}, {{0.1188, 0.003728}}},
     {{{0, 3.592, 0.3027, 0.1496, 0, 0.03536, 0.3098}}, {{0.04407, 1.11}}},
     {{{1.047e+05, 0, 0.1554, 0.3855, 2.847, 0, 0.2477}}, {{0.05525, 0.6267}}},
     {{{3.552e+05, 0, 0, 0.5603, 17.51, 0.2706, 0}}, {{0, 3.372}}}},
    // float16
    {{{{1.104e+05, 0, 0.3951, 0.07738, 0.8886, 0, 0.2974}}, {{0.103, 0.1948}}},
     {{{0, 1.862, 0.3178, 0.2346, 0.9369, 0.6873, 0.3734}}, {{0.07287, 0.3685}}},
     {{{1.166e+05, 0, 0.3158, 0.1601, 0.6842, 1.606, 0.4491}}, {{0.08712, 0.3599}}},
     {{{0, 0.625, 0.3566, 0, 0.8149, 31.49, 0.4137}}, {{0.1188, 0.003728}}},
     {{{0, 3.592, 0.3027, 0.1496, 0, 0.03536, 0.3098}}, {{0.04407, 1.11}}},
     {{{1.047e+05, 0, 0.1554, 0.3855, 2.847, 0, 0.2477}}, {{0.05525, 0.6267}}},
     {{{3.552e+05, 0, 0, 0.5603, 17.51, 0.2706, 0}}, {{0, 3.372}}}},
};

std::size_t type_index(DType type) {
  return type == DType::kFloat32 ? 0 : type == DType::kBFloat16 ? 1 : 2;
}

template <std::size_t n>
double priced(const std::array<double, n>& terms, const std::array<double, n>& constants) {
  return std::inner_product(terms.begin(), terms.end(), constants.begin(), 0.0);
}

}  // namespace

double ProductCost::break_even() const {
  const double spare = dense - compress;
  if (spare <= 0) return 1;
  if (multiply <= spare) return 0;
  return std::min(1.0, std::ceil(1000 * (1 - spare / multiply)) / 1000);
}

ProductCost predict_cost(const PricedProduct& p) {
  const std::size_t type = type_index(p.type);
  const SparseConstants& sparse = kSparse[type][sparse_kind(p)];
  return {.dense = priced(dense_terms(p), kDense[type][static_cast<int>(p.product)][dense_kind(p)]),
          .compress = priced(compress_terms(p), sparse.compress),
          .multiply = priced(multiply_terms(p), sparse.multiply)};
}

CostTerms cost_terms(const PricedProduct& p) {
  const auto list = [](const auto& terms) { return std::vector(terms.begin(), terms.end()); };
  return {.dense_kind = dense_kind(p),
          .sparse_kind = sparse_kind(p),
          .dense = list(dense_terms(p)),
          .compress = list(compress_terms(p)),
          .multiply = list(multiply_terms(p))};
}

}  // namespace slimgrad
