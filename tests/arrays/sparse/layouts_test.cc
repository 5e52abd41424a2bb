// Both products where tensors have their channels first, are of 16 bits, or do not fit at once.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "arrays/sparse/backward.h"
#include "arrays/sparse/samples.h"
#include "arrays/sparse/tile_values.h"

namespace slimgrad {
namespace {

class SparseLayouts : public testing::TestWithParam<Case> {};

// Each tensor with its channels first or last, and a workspace that was used for others.
TEST_P(SparseLayouts, ReadsAndWritesEitherLayout) {
  const ConvShape shape = GetParam().shape;
  const std::int64_t out = shape.y.out * shape.x.out, in = shape.y.in * shape.x.in;
  const Tensors tensors(shape, 0.4);
  const WeightStrides strides = contiguous(shape);
  SparseWorkspace workspace;
  for (const double density : {0.5, 0.02})
    for (const int layouts : {1, 2, 3}) {
      SCOPED_TRACE(testing::Message() << "layouts " << layouts << ", density " << density);
      const bool gradient_first = layouts & 1, input_first = layouts & 2;
      const auto layout = [](bool first) {
        return first ? ImageLayout::kChannelsFirst : ImageLayout::kChannelsLast;
      };
      const PruneDraw draw{{.threshold = 2.0, .seed = 23}, density};
      const std::vector<float> gradient =
          gradient_first ? channels_first(tensors.gradient, shape.out_channels, out)
                         : tensors.gradient;
      const std::vector<float> x =
          input_first ? channels_first(tensors.x, shape.in_channels, in) : tensors.x;
      // Draws are numbered in the order of memory.
      const std::vector<float> drawn = pruned(gradient, draw);
      const Products expected = plain_products(
          shape, gradient_first ? channels_first(drawn, shape.out_channels, out, true) : drawn,
          tensors.x, tensors.weight, strides);
      std::vector<float> dx(x.size(), NAN), dw(tensors.weight.size(), NAN);
      std::vector<float> bias(static_cast<std::size_t>(shape.out_channels), NAN);
      const Images<const float> g{gradient.data(), layout(gradient_first)};
      const SparseCounts counts =
          sparse_input_gradient<float>(shape, g, draw, tensors.weight.data(), strides,
                                       {dx.data(), layout(input_first)}, workspace, in_order);
      if (input_first) dx = channels_first(dx, shape.in_channels, in, true);
      expect_near(dx, expected.dx, expected.dx_size);
      sparse_weight_gradient<float>(shape, g, draw, {x.data(), layout(input_first)}, dw.data(),
                                    strides, bias.data(), workspace, backwards);
      expect_near(dw, expected.dw, expected.dw_size);
      for (std::size_t o = 0; o < bias.size(); ++o)
        EXPECT_NEAR(static_cast<double>(bias[o]), expected.bias[o],
                    1e-5 * (1 + std::abs(expected.bias[o])));
      EXPECT_EQ(counts.survivors,
                static_cast<std::int64_t>(drawn.size()) - std::ranges::count(drawn, 0.0f));
    }
}

// `rounding`: of one value to the type; the float32 sums are below it.
template <typename T>
void expect_sums_in_float32(const ConvShape& shape, double rounding, bool first) {
  const Tensors tensors(shape, 0.5);
  const WeightStrides strides = contiguous(shape);
  const std::int64_t out = shape.y.out * shape.x.out, in = shape.y.in * shape.x.in;
  const auto halves = [](const std::vector<float>& values) {
    std::vector<T> result;
    for (const float v : values) result.push_back(from_float<T>(v));
    return result;
  };
  const auto floats = [](const std::vector<T>& values) {
    std::vector<float> result;
    for (const T v : values) result.push_back(to_float(v));
    return result;
  };
  auto gradient = halves(tensors.gradient), x = halves(tensors.x);
  const auto weight = halves(tensors.weight);
  const Products expected =
      plain_products(shape, floats(gradient), floats(x), floats(weight), strides);
  if (first) {
    gradient = channels_first(gradient, shape.out_channels, out);
    x = channels_first(x, shape.in_channels, in);
  }
  const ImageLayout layout = first ? ImageLayout::kChannelsFirst : ImageLayout::kChannelsLast;
  SparseWorkspace workspace;
  std::vector<T> dx(x.size()), dw(weight.size());
  sparse_input_gradient<T>(shape, {gradient.data(), layout}, {}, weight.data(), strides,
                           {dx.data(), layout}, workspace, in_order);
  if (first) dx = channels_first(dx, shape.in_channels, in, true);
  sparse_weight_gradient<T>(shape, {gradient.data(), layout}, {}, {x.data(), layout}, dw.data(),
                            strides, nullptr, workspace, in_order);
  for (std::size_t i = 0; i < dx.size(); ++i)
    ASSERT_NEAR(static_cast<double>(to_float(dx[i])), expected.dx[i],
                rounding * std::abs(expected.dx[i]) + 2e-5 * expected.dx_size[i]);
  for (std::size_t i = 0; i < dw.size(); ++i)
    ASSERT_NEAR(static_cast<double>(to_float(dw[i])), expected.dw[i],
                rounding * std::abs(expected.dw[i]) + 2e-5 * expected.dw_size[i]);
}

TEST_P(SparseLayouts, SumsBFloat16InFloat32) {
  for (const bool first : {false, true})
    expect_sums_in_float32<BFloat16Bits>(GetParam().shape, 0.0040, first);
}
TEST_P(SparseLayouts, SumsFloat16InFloat32) {
  for (const bool first : {false, true})
    expect_sums_in_float32<Float16Bits>(GetParam().shape, 0.0005, first);
}

INSTANTIATE_TEST_SUITE_P(Shapes, SparseLayouts, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

// 2,048 rows of weights of 64 give sums beyond 65,504.
TEST(SparseLayoutsRules, WhatDoesNotFitFloat16IsInf) {
  const ConvShape shape = linear_shape(8, 8, 2048);
  const std::vector<Float16Bits> gradient(8 * 2048, from_float<Float16Bits>(1.0f));
  const std::vector<Float16Bits> weight(2048 * 8, from_float<Float16Bits>(-64.0f));
  std::vector<Float16Bits> dx(64);
  SparseWorkspace workspace;
  sparse_input_gradient<Float16Bits>(shape, {gradient.data()}, {}, weight.data(),
                                     channels_last(shape), {dx.data()}, workspace, in_order);
  for (const Float16Bits v : dx) EXPECT_EQ(to_float(v), -INFINITY);
}

// More survivors than are held at a time, in two layouts: the draws go on where the piece before
// has ended.
TEST(SparseLayoutsRules, LargeGradientsAreCut) {
  const ConvShape shape = conv(160, 1, 8, 64, 64, 1, 1, 0);
  const std::int64_t elements = shape.out_pixels() * shape.out_channels;
  ASSERT_GT(8 * elements, kMostListBytes);
  const Tensors tensors(shape, 0.0);
  const PruneDraw draw{{.threshold = 20.0, .seed = 3}, 0.05};
  const WeightStrides strides = contiguous(shape);
  for (const bool first : {false, true}) {
    SparseWorkspace workspace;
    const std::vector<float> drawn = pruned(tensors.gradient, draw);
    const Products expected =
        plain_products(shape, first ? channels_first(drawn, 8, 64 * 64, true) : drawn, tensors.x,
                       tensors.weight, strides);
    std::vector<float> dx(tensors.x.size(), NAN);
    const auto layout = first ? ImageLayout::kChannelsFirst : ImageLayout::kChannelsLast;
    sparse_input_gradient<float>(shape, {tensors.gradient.data(), layout}, draw,
                                 tensors.weight.data(), strides, {dx.data()}, workspace, in_order);
    expect_near(dx, expected.dx, expected.dx_size);
    EXPECT_LT(workspace.bytes(), kMostListBytes * 5 / 4);
  }
}

// The same for the gradient of the weight: of many channels, so that lists are used several times.
TEST(SparseLayoutsRules, ListsOfLargeGradientsAreUsedInRounds) {
  const ConvShape shape = linear_shape(90000, 40, 56);
  ASSERT_GT(8 * shape.out_pixels() * shape.out_channels, kMostListBytes);
  const Tensors tensors(shape, 0.0);
  const PruneDraw draw{{.threshold = 20.0, .seed = 3}, 0.05};
  const Products expected = plain_products(shape, pruned(tensors.gradient, draw), tensors.x,
                                           tensors.weight, channels_last(shape));
  SparseWorkspace workspace;
  std::vector<float> dw(tensors.weight.size(), NAN), bias(56, NAN);
  sparse_weight_gradient<float>(shape, {tensors.gradient.data()}, draw, {tensors.x.data()},
                                dw.data(), channels_last(shape), bias.data(), workspace, backwards);
  expect_near(dw, expected.dw, expected.dw_size);
  for (std::size_t o = 0; o < bias.size(); ++o)
    EXPECT_NEAR(static_cast<double>(bias[o]), expected.bias[o],
                1e-4 * (1 + std::abs(expected.bias[o])));
  EXPECT_LT(workspace.bytes(), kMostListBytes * 5 / 4);
}

}  // namespace
}  // namespace slimgrad
