// Products with given weights in a graph that autograd recorded.
#ifndef SLIMGRAD_RUNTIME_COMPRESS_PRODUCTS_H_
#define SLIMGRAD_RUNTIME_COMPRESS_PRODUCTS_H_

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace slimgrad::gating {

struct WeightAndBias {
  at::Tensor weight, bias;  // the bias may be undefined
  std::int64_t num_parts;   // equal parts of the weight's rows
};

// What made the outputs of a layer. They are those of consecutive parts of its weight, one for each
// gradient that comes to the node.
struct ProductNode {
  torch::autograd::Node* node;
  std::size_t layer;
  std::size_t first_part;
};

std::vector<ProductNode> find_products(at::TensorList roots,
                                       const std::vector<WeightAndBias>& layers);

}  // namespace slimgrad::gating

#endif  // SLIMGRAD_RUNTIME_COMPRESS_PRODUCTS_H_
