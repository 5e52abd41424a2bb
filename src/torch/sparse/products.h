// The two products of a layer's backward pass on tensors, sparse (arrays/sparse/backward.h) and
// dense (ATen), for convolutions and linear layers.
#ifndef SLIMGRAD_TORCH_SPARSE_PRODUCTS_H_
#define SLIMGRAD_TORCH_SPARSE_PRODUCTS_H_

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <vector>

#include "arrays/sparse/backward.h"
#include "arrays/sparse/cost.h"
#include "torch/elements.h"

namespace slimgrad::torch_ops {

// None for a linear layer.
struct ConvArguments {
  ConvArguments() = default;
  ConvArguments(at::IntArrayRef stride_, at::IntArrayRef padding_, at::IntArrayRef dilation_,
                std::int64_t groups_)
      : stride(stride_.vec()),
        padding(padding_.vec()),
        dilation(dilation_.vec()),
        groups(groups_) {}

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
  std::int64_t num_elements() const { return gradient_.numel(); }
  DType type() const { return dtype_of(gradient_.scalar_type()); }
  // The gradient without gaps, its channels first or last; draws are numbered in the order of its
  // memory, so that they depend on its layout. A copy only of one that is neither: expanded or
  // strided.
  const at::Tensor& gradient();
  // The next gradient() lays it out anew, as it would have to for one product alone: for timing.
  void forget_order() { ordered_gradient_ = at::Tensor(); }

  // What the model of costs has to know of a product.
  PricedProduct priced(Product product) const;
  // Elements of gradient and input that a sparse product has to lay out anew before it can begin,
  // as torch's dense products may have to, too: part of its price.
  std::int64_t copied_elements(Product product) const;

  // Both products of a convolution will be dense: torch does them in one call, which lays out the
  // gradient once.
  void expect_dense(std::array<bool, 3> wanted);
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
  std::array<at::Tensor, 3> multiply_densely(std::array<bool, 3> which) const;
  bool has_gaps(const at::Tensor& x) const;
  // As torch lays out the layer's output: a gradient with gaps is copied to this.
  at::MemoryFormat output_format() const;
  ImageLayout layout_of(const at::Tensor& x) const;

  at::Tensor gradient_, x_, weight_;
  ConvArguments arguments_;
  ConvShape shape_;
  at::Tensor ordered_gradient_;
  std::array<at::Tensor, 3> dense_;  // if expected
};

}  // namespace slimgrad::torch_ops

#endif  // SLIMGRAD_TORCH_SPARSE_PRODUCTS_H_
