// What a product of a layer's backward pass should cost, sparsely and densely: a model of few terms
// with constants that ship with the library (cost.cc has them and how they were found). It
// sees shapes, layout and type, never a clock or the number of threads: both ways use threads
// alike.
//
// The dense price is 0.96 of the product's share in torch's call for both products of the layer
// (PRICE of bench/cost_fit.py says why 0.96): where the two ways are equal the product is dense,
// and exact.
//
// Only which way is cheaper, and from which sparsity on, is meant to be right. The constants are
// those of one machine; on another the slower way may be taken.
#ifndef SLIMGRAD_ARRAYS_SPARSE_COST_H_
#define SLIMGRAD_ARRAYS_SPARSE_COST_H_

#include <cstdint>
#include <vector>

#include <slimgrad/payload_info.h>

#include "arrays/sparse/conv_shape.h"

namespace slimgrad {

// Which gradient a product computes: that of the weight, or of the input.
enum class Product : std::int64_t { kWeight, kInput };

struct PricedProduct {
  ConvShape shape;
  Product product = Product::kWeight;
  DType type = DType::kFloat32;  // or one of the two half types
  bool is_linear_layer = false;  // its dense product is a matrix product
  bool channels_last = true;     // x, of a convolution; otherwise they come first
  std::int64_t copied = 0;       // values that the sparse way copies before it begins
};

// In any unit of time: predicted nanoseconds, or measured seconds.
struct ProductCost {
  double dense = 0;
  double compress = 0;  // sparse: what does not shrink with the survivors,
  double multiply = 0;  // and what all values would take

  double sparse(double sparsity) const { return compress + (1 - sparsity) * multiply; }
  // From this sparsity on the sparse way is not the slower one; 1 if it always is. In thousandths,
  // upwards: no two compilers then differ in a last bit that decides.
  double break_even() const;
};

ProductCost predict_cost(const PricedProduct& product);

// The same in parts, for fitting the constants: a cost is the sum of terms times constants.
struct CostTerms {
  std::vector<double> dense, compress, multiply;
  double other;  // part of `compress` that has no fitted constant, in nanoseconds
};
CostTerms cost_terms(const PricedProduct& product);

}  // namespace slimgrad

#endif  // SLIMGRAD_ARRAYS_SPARSE_COST_H_
