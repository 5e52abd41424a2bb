// The constants below are nanoseconds of two threads of an AMD EPYC (AVX-512 with bfloat16
// products) with torch 2.13, found by
//
//   python -m bench.cost_model --from results/cost_model.json --fit
//
// as non-negative least squares of relative errors over the layers of bench/layer_shapes.py, both
// layouts and both types. How often they misjudge is in docs/benchmarks.md. To fit them anew,
// paste what the command prints; tests/arrays/sparse/cost_test.cc wants them sane.
#include "arrays/sparse/cost.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "arrays/sparse/layout.h"
#include "arrays/sparse/tap_tiles.h"

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
// (arrays/sparse/input.h); and with groups, each of which has tiles and lists of its own.
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
  return s.is_linear() ? kInputPixels : kInputGathered;
}

// Whatever survives: the call with its plan; the sample; a pass over the gradient; the input and
// the weight in padded tiles; sums or lists that begin and end; what is in another layout.
constexpr std::size_t kCompressTerms = 8;
// If all did: vectors of eight that are multiplied, and iterations of the loop over survivors.
constexpr std::size_t kMultiplyTerms = 2;
using CompressTerms = std::array<double, kCompressTerms>;
using MultiplyTerms = std::array<double, kMultiplyTerms>;

// The input's channels of a group in tiles, as the kernels cut them.
struct Cut {
  double tiles, eights;
  double iterations;  // of the loop for one survivor and tile
};
Cut cut_of(const PricedProduct& p) {
  if (p.product == Product::kInput) {
    const ColumnTiles tiles = column_tiles(p.shape.group_in(), kMaxInputEights);
    return {static_cast<double>(tiles.count), static_cast<double>(tiles.eights),
            static_cast<double>(p.shape.taps())};
  }
  const TapTiles tiles(p.shape.simplified());
  double iterations = 0;
  tiles.for_taps([&](const TapTiles::Taps&) { ++iterations; });
  return {static_cast<double>(tiles.count()), static_cast<double>(tiles.pixel_size()) / 8,
          iterations};
}

// Values of images with the channels first, which the sparse way transposes as it reads and writes.
double transposed_values(const PricedProduct& p) {
  const Sizes sizes(p.shape);
  return p.channels_last ? 0 : sizes.gradient + sizes.input;
}

// A tensor with gaps is copied first; what that takes was fitted when contiguous images were.
constexpr double kCopyNanoseconds = 0.6;

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
    sums = sizes.gradient * cut.tiles * cut.iterations / kPixelsAList;
  const double weights = static_cast<double>(s.out_channels * s.taps()) * width;
  constexpr double kKept = (48 << 20) / sizeof(float);  // about; fresh memory costs several passes
  return {1,
          std::min(kSampled, sizes.gradient),
          sizes.gradient,
          inputs * width,
          weights,
          sums,
          transposed_values(p),
          weights > kKept ? weights : 0};
}

MultiplyTerms multiply_terms(const PricedProduct& p) {
  const Cut cut = cut_of(p);
  const double tiles = Sizes(p.shape).gradient * cut.tiles;
  return {tiles * cut.eights * static_cast<double>(p.shape.taps()), tiles * cut.iterations};
}

// ---- constants -------------------------------------------------------------------------------

constexpr std::size_t kTypes = 3;  // float32, bfloat16, float16

// [type][product][kind]
constexpr DenseTerms kDense[kTypes][2][kDenseKinds] = {
    // float32
    {{{{0, 0.009281, 0.07492, 0.9709, 0.1792, 0.0001667}},
      {{2.483e+04, 0.009225, 0.1399, 1.375, 0, 0}},
      {{0, 0, 0.2693, 14.27, 0.04148, 0}},
      {{4.025e+04, 0.1196, 0, 0, 0.1785, 0}},
      {{7.748e+04, 0.1531, 0.02176, 11.15, 7.429, 0}}},
     {{{0, 0.008446, 0.1768, 0.3751, 0.2313, 0}},
      {{0, 0.009853, 0.1954, 0.3869, 0, 0}},
      {{0, 0, 0.3596, 12.08, 0.1576, 0}},
      {{4.539e+04, 0.2014, 0, 0, 0.4679, 0}},
      {{8.939e+04, 0.0121, 0.4273, 6.665, 0.1778, 0}}}},
    // bfloat16
    {{{{4.928e+04, 0.004859, 0.08212, 0.7709, 0.1056, 0}},
      {{3.995e+04, 0.004174, 0.1563, 0.5974, 0, 0}},
      {{1775, 0.0447, 0, 3.355, 0.175, 0}},
      {{7.467e+04, 0.08049, 0, 0, 0.1172, 0}},
      {{3.262e+04, 0.01042, 5.087, 0, 2.442, 0}}},
     {{{8469, 0.004344, 0.08297, 0.262, 0.1688, 0}},
      {{3.559e+04, 0.00457, 0.0814, 0.1595, 0, 0}},
      {{1.272e+05, 0, 0.1629, 13.88, 0.171, 0}},
      {{0, 1.839, 0, 1926, 0.7298, 0}},
      {{1.15e+05, 0.01299, 0.2573, 0, 0.1645, 0}}}},
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
    {{{{1.351e+05, 0, 0.3554, 0.05585, 0.3016, 0.6475, 0.07617, 1.711}}, {{0.08864, 0.3452}}},
     {{{0, 1.766, 0.3131, 0.1787, 0.908, 1.135, 0, 0}}, {{0.001713, 0.893}}},
     {{{1.451e+05, 0, 0.3097, 0.001047, 0.1909, 1.348, 0.1129, 1.797}}, {{0.08113, 0.442}}},
     {{{0, 1.743, 0.4092, 0.009523, 0.5689, 10.39, 0.118, 0}}, {{0.1176, 0.0123}}},
     {{{0, 2.964, 0.2306, 0.2353, 0, 0.04719, 0.1206, 0}}, {{0.0225, 1.324}}},
     {{{1.362e+05, 0, 0, 0.3494, 2.69, 0, 0, 0}}, {{0.03867, 0.7444}}},
     {{{1.23e+05, 0, 2.952, 0.3717, 20.3, 0, 0, 0}}, {{0.6487, 0}}}},
    // bfloat16
    {{{{1.187e+05, 0, 0.3323, 0.04952, 0.3021, 1.321, 0.06849, 2.216}}, {{0.07368, 0.448}}},
     {{{0, 2.265, 0.305, 0.2034, 0.9766, 0.3091, 0, 0}}, {{0, 0.8911}}},
     {{{1.287e+05, 0, 0.3793, 0, 0.2016, 7.873, 0, 1.759}}, {{0.09061, 0.3211}}},
     {{{0, 2.331, 0.4328, 0.04669, 0.5004, 10.19, 0.01327, 0}}, {{0.1149, 0.009294}}},
     {{{0, 2.447, 0.2486, 0.326, 0, 0.04927, 0.06852, 0}}, {{0.04543, 1.064}}},
     {{{1.282e+05, 0, 0.09325, 0.3203, 3.314, 0, 0, 0}}, {{0.0772, 0.3614}}},
     {{{3.427e+05, 0, 0, 0.5546, 15.89, 0, 0, 0}}, {{0.5661, 0}}}},
    // float16
    {{{{1.187e+05, 0, 0.3323, 0.04952, 0.3021, 1.321, 0.06849, 2.216}}, {{0.07368, 0.448}}},
     {{{0, 2.265, 0.305, 0.2034, 0.9766, 0.3091, 0, 0}}, {{0, 0.8911}}},
     {{{1.287e+05, 0, 0.3793, 0, 0.2016, 7.873, 0, 1.759}}, {{0.09061, 0.3211}}},
     {{{0, 2.331, 0.4328, 0.04669, 0.5004, 10.19, 0.01327, 0}}, {{0.1149, 0.009294}}},
     {{{0, 2.447, 0.2486, 0.326, 0, 0.04927, 0.06852, 0}}, {{0.04543, 1.064}}},
     {{{1.282e+05, 0, 0.09325, 0.3203, 3.314, 0, 0, 0}}, {{0.0772, 0.3614}}},
     {{{3.427e+05, 0, 0, 0.5546, 15.89, 0, 0, 0}}, {{0.5661, 0}}}},
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
          .compress = priced(compress_terms(p), sparse.compress) +
                      kCopyNanoseconds * static_cast<double>(p.copied),
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
