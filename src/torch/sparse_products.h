// The two products of a layer's backward pass on tensors, sparse (codecs/sparse_backward.h) and
// dense (ATen), for convolutions and linear layers.
#ifndef SLIMGRAD_TORCH_SPARSE_PRODUCTS_H_
#define SLIMGRAD_TORCH_SPARSE_PRODUCTS_H_

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <vector>

#include "codecs/sparse_backward.h"
#include "codecs/sparse_cost.h"

namespace slimgrad::torch_ops {

struct ConvArguments {
  std::vector<std::int64_t> stride, padding, dilation;  // vertical, horizontal
  std::int64_t groups = 1;
};

// The tensors of one backward pass. A linear layer's x and gradient are matrices, a convolution's
// have four dimensions.
class LayerBackward {
 public:
  // Throws InvalidArgument, in the name of `op`, for sizes that do not belong together.
  LayerBackward(const char* op, const at::Tensor& gradient, const at::Tensor& x,
                const at::Tensor& weight, const ConvArguments& arguments);

  // Whether there are sparse kernels for these tensors.
  bool can_be_sparse() const;
  // The gradient in the order in which its elements are numbered for random draws, once it is
  // needed: rows are pixels.
  const at::Tensor& gradient();
  std::int64_t num_elements() const { return gradient_.numel(); }
  // The next gradient() lays it out anew, as it would have to for one product alone: for timing.
  void forget_order() { ordered_gradient_ = at::Tensor(); }

  // What the model of costs has to know of a product.
  PricedProduct priced(Product product) const;
  // Values that the sparse way copies to another layout: the gradient; x or its gradient.
  std::int64_t copied_elements(Product product) const;

  at::Tensor dense_input_gradient() const;
  at::Tensor sparse_input_gradient(const PruneDraw& draw, SparseCounts& counts);

  struct WeightGradients {
    at::Tensor weight, bias;  // bias: undefined unless asked for
  };
  WeightGradients dense_weight_gradient(bool with_bias) const;
  WeightGradients sparse_weight_gradient(const PruneDraw& draw, bool with_bias,
                                         SparseCounts& counts);
  at::Tensor bias_gradient() const;

 private:
  bool is_linear() const { return x_.dim() == 2; }
  std::array<at::Tensor, 3> dense(std::array<bool, 3> which) const;
  at::MemoryFormat rows_are_pixels() const {
    return is_linear() ? at::MemoryFormat::Contiguous : at::MemoryFormat::ChannelsLast;
  }

  at::Tensor gradient_, x_, weight_;
  ConvArguments arguments_;
  ConvShape shape_;
  at::Tensor ordered_gradient_;
};

}  // namespace slimgrad::torch_ops

#endif  // SLIMGRAD_TORCH_SPARSE_PRODUCTS_H_
