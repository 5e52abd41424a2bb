// Both products against plain loops in double precision over the same pruned gradient, for the
// shapes that convolutions come in.
#include "arrays/sparse/backward.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "arrays/sparse/samples.h"

namespace slimgrad {
namespace {

class SparseBackward : public testing::TestWithParam<Case> {};

TEST_P(SparseBackward, EqualsPlainLoopsOnThePrunedGradient) {
  const ConvShape shape = GetParam().shape;
  SparseWorkspace workspace;
  for (const double zeros : {0.0, 0.5, 0.95, 1.0})
    for (const double threshold : {0.0, 1.0, 30.0}) {
      SCOPED_TRACE(testing::Message() << "zeros " << zeros << ", threshold " << threshold);
      const Tensors tensors(shape, zeros);
      // The work is cut by the density that is expected, right or wrong.
      for (const double density : {0.5, 0.01, 0.0}) {
        const WeightStrides strides = density > 0.1 ? channels_last(shape) : contiguous(shape);
        const PruneDraw draw{{.threshold = threshold, .seed = 17}, density};
        const std::vector<float> gradient = pruned(tensors.gradient, draw);
        const Products expected =
            plain_products(shape, gradient, tensors.x, tensors.weight, strides);
        std::vector<float> dx(tensors.x.size(), NAN), dw(tensors.weight.size(), NAN);
        std::vector<float> bias(static_cast<std::size_t>(shape.out_channels), NAN);
        const SparseCounts counts = sparse_input_gradient<float>(
            shape, {tensors.gradient.data()}, draw, tensors.weight.data(), strides, {dx.data()},
            workspace, in_order);
        expect_near(dx, expected.dx, expected.dx_size);
        sparse_weight_gradient<float>(shape, {tensors.gradient.data()}, draw, {tensors.x.data()},
                                      dw.data(), strides, bias.data(), workspace, in_order);
        expect_near(dw, expected.dw, expected.dw_size);
        std::int64_t survivors = 0;
        for (const float g : gradient) survivors += g != 0;
        EXPECT_EQ(counts.survivors, survivors);
        EXPECT_EQ(counts.elements, static_cast<std::int64_t>(gradient.size()));
        for (std::size_t o = 0; o < bias.size(); ++o)
          EXPECT_NEAR(static_cast<double>(bias[o]), expected.bias[o],
                      1e-5 * (1 + std::abs(expected.bias[o])));
      }
    }
}

TEST_P(SparseBackward, DoesNotDependOnTheOrderOfTasks) {
  const ConvShape shape = GetParam().shape;
  const Tensors tensors(shape, 0.3);
  const PruneDraw draw{{.threshold = 2.0, .seed = 5}};
  const WeightStrides strides = channels_last(shape);
  std::vector<std::vector<float>> dx, dw;
  for (const auto& parallel : {Parallel(in_order), Parallel(backwards)}) {
    SparseWorkspace workspace;
    dx.emplace_back(tensors.x.size());
    dw.emplace_back(tensors.weight.size());
    sparse_input_gradient<float>(shape, {tensors.gradient.data()}, draw, tensors.weight.data(),
                                 strides, {dx.back().data()}, workspace, parallel);
    sparse_weight_gradient<float>(shape, {tensors.gradient.data()}, draw, {tensors.x.data()},
                                  dw.back().data(), strides, nullptr, workspace, parallel);
  }
  EXPECT_EQ(dx[0], dx[1]);
  EXPECT_EQ(dw[0], dw[1]);
}

INSTANTIATE_TEST_SUITE_P(Shapes, SparseBackward, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

TEST(SparseBackwardRules, NonFiniteGradientsReachBothProducts) {
  const ConvShape shape = linear_shape(4, 8, 8);
  Tensors tensors(shape, 0.9);
  tensors.gradient[11] = NAN;
  std::vector<float> dx(tensors.x.size()), dw(tensors.weight.size());
  SparseWorkspace workspace;
  sparse_input_gradient<float>(shape, {tensors.gradient.data()}, {{.threshold = 1.0, .seed = 3}},
                               tensors.weight.data(), channels_last(shape), {dx.data()}, workspace,
                               in_order);
  sparse_weight_gradient<float>(shape, {tensors.gradient.data()}, {{.threshold = 1.0, .seed = 3}},
                                {tensors.x.data()}, dw.data(), channels_last(shape), nullptr,
                                workspace, in_order);
  EXPECT_TRUE(std::isnan(dx[1 * 8]));  // row 1
  EXPECT_TRUE(std::isnan(dw[3 * 8]));  // channel 3
  EXPECT_FALSE(std::isnan(dx[0]));
}

TEST(FitsSparseBackward, UnlessOffsetsWouldNotFit) {
  EXPECT_TRUE(fits_sparse_backward(conv(64, 64, 64, 32, 32, 3, 1, 1)));
  EXPECT_FALSE(fits_sparse_backward(conv(0, 64, 64, 32, 32, 3, 1, 1)));
  EXPECT_FALSE(fits_sparse_backward(conv(1, 1, std::int64_t{1} << 24, 3, 3, 3, 1, 1)));
  EXPECT_FALSE(fits_sparse_backward(conv(1, 1, 1, 3, std::int64_t{1} << 25, 3, 1, 1)));
}

}  // namespace
}  // namespace slimgrad
