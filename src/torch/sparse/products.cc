#include "torch/sparse/products.h"

#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>

#include "base/check.h"
#include "kernels/dispatch.h"
#include "torch/checks.h"
#include "torch/elements.h"
#include "torch/recycled_memory.h"
#include "torch/threads.h"

namespace slimgrad::torch_ops {
namespace {

// With the strides of `like`: ATen's products come in the layout that suited them, and a compiled
// graph relies on what the op promised.
at::Tensor laid_out_as(const at::Tensor& like, const at::Tensor& x) {
  return x.strides() == like.strides() ? x : at::empty_like(like).copy_(x);
}

WeightStrides strides_of(const at::Tensor& weight) {
  if (weight.dim() == 2) return {weight.stride(0), weight.stride(1), 0, 0};
  return {weight.stride(0), weight.stride(1), weight.stride(2), weight.stride(3)};
}

ConvShape shape_of(const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& weight,
                   const ConvArguments& arguments) {
  if (x.dim() == 2) return linear_shape(x.size(0), x.size(1), weight.size(0));
  ConvShape shape;
  shape.images = x.size(0);
  shape.in_channels = x.size(1);
  shape.out_channels = weight.size(0);
  shape.groups = arguments.groups;
  const auto axis = [&](std::size_t i) {
    const auto dim = static_cast<std::int64_t>(i) + 2;
    return ConvAxis{.in = x.size(dim),
                    .out = gradient.size(dim),
                    .taps = weight.size(dim),
                    .stride = arguments.stride[i],
                    .padding = arguments.padding[i],
                    .dilation = arguments.dilation[i]};
  };
  shape.y = axis(0);
  shape.x = axis(1);
  return shape;
}

void check_shapes(const char* op, const at::Tensor& gradient, const at::Tensor& x,
                  const at::Tensor& weight, const ConvArguments& arguments) {
  const auto dims = x.dim();
  check((dims == 2 || dims == 4) && gradient.dim() == dims && weight.dim() == dims, op,
        "grad, x and weight of two dimensions, or all of four", gradient.sizes(), ", ", x.sizes(),
        " and ", weight.sizes());
  const bool channels_agree =
      weight.size(1) * arguments.groups == x.size(1) && weight.size(0) % arguments.groups == 0;
  check(channels_agree && gradient.size(1) == weight.size(0) && gradient.size(0) == x.size(0), op,
        "grad, x and weight of one layer", gradient.sizes(), ", ", x.sizes(), " and ",
        weight.sizes());
}

}  // namespace

LayerBackward::LayerBackward(const char* op, const at::Tensor& gradient, const at::Tensor& x,
                             const at::Tensor& weight, const ConvArguments& arguments)
    : gradient_(gradient), x_(x), weight_(weight), arguments_(arguments) {
  check_shapes(op, gradient, x, weight, arguments);
  shape_ = shape_of(gradient, x, weight, arguments);
  const bool sizes_agree = is_linear() || (shape_.y.out == shape_.y.expected_out() &&
                                           shape_.x.out == shape_.x.expected_out());
  check(sizes_agree, op, "a grad of the size that the convolution gives", gradient.sizes());
}

bool LayerBackward::can_be_sparse() const {
  const auto type = gradient_.scalar_type();
  return gradient_.is_cpu() && x_.is_cpu() && weight_.is_cpu() && is_float_dtype(type) &&
         x_.scalar_type() == type && weight_.scalar_type() == type && fits_sparse_backward(shape_);
}

const at::Tensor& LayerBackward::gradient() {
  if (!ordered_gradient_.defined())
    ordered_gradient_ = has_gaps(gradient_) ? gradient_.contiguous(output_format()) : gradient_;
  return ordered_gradient_;
}

ImageLayout LayerBackward::layout_of(const at::Tensor& x) const {
  return is_linear() || x.is_contiguous(at::MemoryFormat::ChannelsLast)
             ? ImageLayout::kChannelsLast
             : ImageLayout::kChannelsFirst;
}

bool LayerBackward::has_gaps(const at::Tensor& x) const {
  return !x.is_contiguous() && (is_linear() || !x.is_contiguous(at::MemoryFormat::ChannelsLast));
}

at::MemoryFormat LayerBackward::output_format() const {
  constexpr auto kLast = at::MemoryFormat::ChannelsLast;
  const bool last = x_.suggest_memory_format() == kLast || weight_.suggest_memory_format() == kLast;
  return last ? kLast : at::MemoryFormat::Contiguous;
}

std::int64_t LayerBackward::copied_elements(Product product) const {
  const std::int64_t gradient = has_gaps(gradient_) ? gradient_.numel() : 0;
  const std::int64_t x = product == Product::kWeight && has_gaps(x_) ? x_.numel() : 0;
  return gradient + x;
}

PricedProduct LayerBackward::priced(Product product) const {
  return {.shape = shape_,
          .product = product,
          .type = type(),
          .is_linear_layer = is_linear(),
          .channels_last = is_linear() || x_.is_contiguous(at::MemoryFormat::ChannelsLast),
          .copied = copied_elements(product)};
}

void LayerBackward::expect_dense(std::array<bool, 3> wanted) {
  if (!is_linear()) dense_ = multiply_densely(wanted);
}

std::array<at::Tensor, 3> LayerBackward::dense(std::array<bool, 3> which) const {
  return dense_[0].defined() ? dense_ : multiply_densely(which);
}

std::array<at::Tensor, 3> LayerBackward::multiply_densely(std::array<bool, 3> which) const {
  const auto [dx, dw, bias] = at::convolution_backward(
      gradient_, x_, weight_, at::IntArrayRef{weight_.size(0)}, arguments_.stride,
      arguments_.padding, arguments_.dilation, false, {0, 0}, arguments_.groups, which);
  return {dx, dw, bias};
}

at::Tensor LayerBackward::dense_input_gradient() const {
  if (is_linear()) return at::mm(gradient_, weight_);
  return dense({true, false, false})[0].contiguous(x_.suggest_memory_format());
}

LayerBackward::WeightGradients LayerBackward::dense_weight_gradient(bool with_bias) const {
  if (is_linear())
    return {laid_out_as(weight_, at::mm(gradient_.t(), x_)),
            with_bias ? bias_gradient() : at::Tensor()};
  const auto gradients = dense({false, true, with_bias});
  return {laid_out_as(weight_, gradients[1]), gradients[2]};
}

at::Tensor LayerBackward::bias_gradient() const {
  return is_linear() ? gradient_.sum(0) : gradient_.sum(at::IntArrayRef{0, 2, 3});
}

at::Tensor LayerBackward::sparse_input_gradient(const PruneDraw& draw, SparseCounts& counts) {
  kernels::obey_environment();
  at::Tensor dx = recycled_empty(x_.sizes(), x_.scalar_type(), x_.suggest_memory_format());
  const at::Tensor& g = gradient();
  const Pooled<SparseWorkspace> workspace;
  with_element_type(g.scalar_type(), [&]<typename T>() {
    counts = slimgrad::sparse_input_gradient<T>(
        shape_, {elements<T>(g).data(), layout_of(g)}, draw,
        static_cast<const T*>(weight_.const_data_ptr()), strides_of(weight_),
        {mutable_elements<T>(dx).data(), layout_of(dx)}, *workspace, for_tasks);
  });
  return dx;
}

LayerBackward::WeightGradients LayerBackward::sparse_weight_gradient(const PruneDraw& draw,
                                                                     bool with_bias,
                                                                     SparseCounts& counts) {
  kernels::obey_environment();
  const at::Tensor x = has_gaps(x_) ? x_.contiguous(x_.suggest_memory_format()) : x_;
  const at::Tensor& g = gradient();
  WeightGradients result{recycled_empty_like(weight_), at::Tensor()};
  if (with_bias) result.bias = at::empty({weight_.size(0)}, weight_.options());
  const Pooled<SparseWorkspace> workspace;
  with_element_type(g.scalar_type(), [&]<typename T>() {
    counts = slimgrad::sparse_weight_gradient<T>(
        shape_, {elements<T>(g).data(), layout_of(g)}, draw, {elements<T>(x).data(), layout_of(x)},
        static_cast<T*>(result.weight.mutable_data_ptr()), strides_of(result.weight),
        with_bias ? mutable_elements<T>(result.bias).data() : nullptr, *workspace, for_tasks);
  });
  return result;
}

}  // namespace slimgrad::torch_ops
