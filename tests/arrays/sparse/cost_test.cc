#include "arrays/sparse/cost.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <vector>

namespace slimgrad {
namespace {

ConvShape conv(std::int64_t images, std::int64_t size, std::int64_t in, std::int64_t out,
               std::int64_t taps, std::int64_t stride = 1, std::int64_t groups = 1) {
  ConvShape shape;
  shape.images = images;
  shape.groups = groups;
  shape.in_channels = in;
  shape.out_channels = out;
  shape.y = {.in = size, .taps = taps, .stride = stride, .padding = taps / 2};
  shape.y.out = shape.y.expected_out();
  shape.x = shape.y;
  return shape;
}

ConvShape dilated() {
  ConvShape shape = conv(8, 28, 64, 64, 3);
  shape.y.dilation = shape.x.dilation = shape.y.padding = shape.x.padding = 2;
  return shape;
}

constexpr Product kProducts[] = {Product::kWeight, Product::kInput};
constexpr DType kTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

// Of every kind of layer and every type.
std::vector<PricedProduct> some_products() {
  std::vector<PricedProduct> products;
  for (const Product product : kProducts)
    for (const DType type : kTypes) {
      for (const auto& [rows, in, out] :
           {std::array<std::int64_t, 3>{4096, 1024, 1024}, {8, 16, 16}, {100, 7, 3}, {1, 1, 1}})
        products.push_back({linear_shape(rows, in, out), product, type, true, true, 0});
      for (const ConvShape& shape :
           {conv(64, 32, 64, 64, 3), conv(1, 1, 1, 1, 1), conv(4, 224, 3, 64, 7, 2),
            conv(8, 28, 96, 96, 7, 1, 96), conv(8, 28, 128, 128, 3, 1, 8), conv(16, 19, 33, 17, 3),
            conv(8, 14, 96, 96, 3, 2, 96), dilated()}) {
        products.push_back({shape, product, type, false, true, 0});
        products.push_back(
            {shape, product, type, false, false, shape.out_pixels() * shape.out_channels});
      }
    }
  return products;
}

TEST(SparseCost, IsPositiveAndFinite) {
  for (const PricedProduct& p : some_products()) {
    const ProductCost cost = predict_cost(p);
    EXPECT_TRUE(std::isfinite(cost.dense) && cost.dense > 0);
    EXPECT_TRUE(std::isfinite(cost.compress) && cost.compress > 0);
    EXPECT_TRUE(std::isfinite(cost.multiply) && cost.multiply > 0);
    const CostTerms terms = cost_terms(p);
    for (const auto& list : {terms.dense, terms.compress, terms.multiply})
      for (const double term : list) EXPECT_TRUE(std::isfinite(term) && term >= 0);
  }
}

TEST(SparseCost, FallsWithTheSparsity) {
  for (const PricedProduct& p : some_products()) {
    const ProductCost cost = predict_cost(p);
    for (double sparsity = 0; sparsity < 0.99; sparsity += 0.1)
      EXPECT_GT(cost.sparse(sparsity), cost.sparse(sparsity + 0.1));
  }
}

TEST(SparseCost, GrowsWithTheBatch) {
  for (PricedProduct p : some_products()) {
    const ProductCost one = predict_cost(p);
    p.shape.images *= 2;
    p.copied *= 2;
    const ProductCost two = predict_cost(p);
    EXPECT_GT(two.dense, one.dense);
    EXPECT_LE(two.dense, 2 * one.dense * (1 + 1e-12));
    EXPECT_GT(two.compress, one.compress);
    EXPECT_LE(two.compress, 2 * one.compress * (1 + 1e-12));
    EXPECT_DOUBLE_EQ(two.multiply, 2 * one.multiply);
  }
}

TEST(SparseCost, CountsCopiesAndOtherLayouts) {
  for (PricedProduct p : some_products()) {
    if (!p.channels_last || p.shape.groups > 1) continue;
    const ProductCost without = predict_cost(p);
    PricedProduct copied = p;
    copied.copied = 1 << 20;
    EXPECT_GT(predict_cost(copied).compress, without.compress);
    EXPECT_EQ(predict_cost(copied).dense, without.dense);
    EXPECT_GE(predict_cost(copied).break_even(), without.break_even());
    p.channels_last = false;
    EXPECT_GE(predict_cost(p).compress, without.compress);
  }
}

// Each has a price of its own in the model.
TEST(SparseCost, CountsWhatIsSlow) {
  const auto input = [](const ConvShape& shape, DType type = DType::kFloat32) {
    return predict_cost({shape, Product::kInput, type});
  };
  const auto weight = [](const ConvShape& shape) {
    return predict_cost({shape, Product::kWeight, DType::kFloat32});
  };
  // A sum for every tap of a row.
  EXPECT_GT(input(dilated()).compress, input(conv(8, 28, 64, 64, 3)).compress);
  // float16 has no dense kernels, and half types none for strided depthwise layers.
  const ConvShape plain = conv(64, 32, 64, 64, 3), strided = conv(8, 14, 96, 96, 3, 2, 96);
  EXPECT_GT(input(plain, DType::kFloat16).dense, 4 * input(plain).dense);
  EXPECT_LT(input(plain, DType::kBFloat16).dense, input(plain).dense);
  EXPECT_GT(input(strided, DType::kBFloat16).dense, 4 * input(strided).dense);
  // Depthwise weights of more than nine taps.
  EXPECT_GT(weight(conv(8, 28, 96, 96, 5, 1, 96)).dense,
            4 * weight(conv(8, 28, 96, 96, 3, 1, 96)).dense);
  // A workspace that is not kept.
  const double kept = weight(linear_shape(8, 2048, 4096)).compress;
  EXPECT_GT(weight(linear_shape(8, 4096, 4096)).compress, 3 * kept);
}

TEST(SparseCost, PaysWhereItPlainlyDoes) {
  for (const Product product : kProducts) {
    const PricedProduct wide{conv(64, 32, 64, 64, 3), product};
    EXPECT_LT(predict_cost(wide).break_even(), 0.8) << static_cast<int>(product);
    const PricedProduct linear{linear_shape(4096, 1024, 1024), product, DType::kFloat32, true};
    EXPECT_LT(predict_cost(linear).break_even(), 0.8) << static_cast<int>(product);
    // A few thousand multiply-adds take less time than the treatment of a pruning.
    const PricedProduct tiny{linear_shape(8, 16, 16), product, DType::kFloat32, true};
    EXPECT_EQ(predict_cost(tiny).break_even(), 1) << static_cast<int>(product);
  }
}

TEST(ProductCost, BreakEven) {
  EXPECT_EQ((ProductCost{.dense = 5, .compress = 1, .multiply = 8}.break_even()), 0.5);
  EXPECT_EQ((ProductCost{.dense = 5, .compress = 1, .multiply = 4}.break_even()), 0);
  EXPECT_EQ((ProductCost{.dense = 5, .compress = 1, .multiply = 1}.break_even()), 0);
  EXPECT_EQ((ProductCost{.dense = 5, .compress = 1, .multiply = 0}.break_even()), 0);
  EXPECT_EQ((ProductCost{.dense = 5, .compress = 5, .multiply = 1}.break_even()), 1);
  EXPECT_EQ((ProductCost{.dense = 5, .compress = 6, .multiply = 1}.break_even()), 1);
  EXPECT_EQ((ProductCost{.dense = 5, .compress = 1, .multiply = 1e30}.break_even()), 1);
  // In thousandths, upwards.
  EXPECT_EQ((ProductCost{.dense = 3, .compress = 1, .multiply = 3}.break_even()), 0.334);
}

TEST(ProductCost, TheBreakEvenIsWhereTheWaysMeet) {
  for (const PricedProduct& p : some_products()) {
    const ProductCost cost = predict_cost(p);
    const double at = cost.break_even();
    EXPECT_TRUE(at == 1 || cost.sparse(at) <= cost.dense * (1 + 1e-9)) << at;
    EXPECT_TRUE(at == 0 || cost.sparse(at - 0.0011) >= cost.dense * (1 - 1e-9)) << at;
  }
}

}  // namespace
}  // namespace slimgrad
