// dropout, prelu and max_pool2d: the backward pass is a choice for each element, which is all that
// they save.
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/max_pool2d_with_indices.h>
#include <ATen/ops/max_pool2d_with_indices_backward.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/prelu.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "torch/checks.h"
#include "torch/errors.h"
#include "torch/fewbit/codes_node.h"
#include "torch/own_gradient.h"
#include "torch/second_backward.h"

namespace slimgrad::torch_ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

bool records_gradient(const at::Tensor& x) {
  return at::GradMode::is_enabled() && x.requires_grad();
}

// ---- dropout -----------------------------------------------------------------------------------

// 1 / (1 - p) as torch rounds it, which divides in float32.
double dropout_scale(double p, at::ScalarType type) {
  const float scale = 1.0f / static_cast<float>(1 - p);
  if (type == at::kBFloat16) return c10::BFloat16(scale);
  if (type == at::kHalf) return c10::Half(scale);
  return scale;
}

struct Dropout : Function<Dropout> {
  static constexpr bool is_traceable = true;  // for compiled autograd

  // torch's own recipe and random numbers. Its noise is a float per element; a bit is saved.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, double p) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    at::Tensor noise = at::empty_like(x).bernoulli_(1 - p);
    save_codes(context, codes_of_steps(noise, 0.5, false), {0.0, dropout_scale(p, x.scalar_type())},
               noise);
    return x * noise.div_(1 - p);
  }

  static variable_list backward(AutogradContext* context, variable_list& grads) {
    return gradient_of_codes(context, grads, 2);
  }
};

at::Tensor dropout(const at::Tensor& x, double p, bool training) {
  check(0 <= p && p <= 1, "dropout", "a probability", p);
  if (!training || p == 0 || p == 1 || !records_gradient(x)) return at::dropout(x, p, training);
  check_float_dtype(x, "dropout");
  return Dropout::apply(x, p);
}

// ---- prelu -------------------------------------------------------------------------------------

struct PReLU : Function<PReLU> {
  static constexpr bool is_traceable = true;

  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weight) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    context->save_for_backward({codes_of_steps(x, 0.0, false), weight});
    context->saved_data["strides"] = strides_of_codes(x);
    return at::prelu(x, weight);
  }

  static variable_list backward(AutogradContext* context, variable_list& grads) {
    variable_list result(2);
    const at::Tensor grad = take_gradient(grads);
    if (!grad.defined()) return result;
    const variable_list saved = context->get_saved_variables();
    const std::vector<c10::SymInt> strides = context->saved_data["strides"].toSymIntVector();
    at::Tensor slope = saved[1];
    if (slope.sym_numel() > 1) {
      std::vector<std::int64_t> shape(static_cast<std::size_t>(grad.dim()), 1);
      shape[1] = -1;
      slope = slope.view(shape);
    }
    {
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      const auto part = [&](double left, double right) {
        return call_stepwise_backward(grad, saved[0], {left, right}, strides);
      };
      result[0] = part(0, 1) + part(1, 0) * slope;
    }
    refuse_second_backward(result[0], grad);
    return result;
  }
};

at::Tensor prelu(const at::Tensor& x, const at::Tensor& weight) {
  if (!records_gradient(x) && !records_gradient(weight)) return at::prelu(x, weight);
  check(!weight.requires_grad(), "prelu", "a weight that takes no gradient",
        "one that does: its gradient needs the input, so use torch's own");
  check_float_dtype(x, "prelu");
  return PReLU::apply(x, weight);
}

// ---- max_pool2d --------------------------------------------------------------------------------

using Pair = std::array<std::int64_t, 2>;

Pair pair_of(at::IntArrayRef values, const char* name) {
  check(values.size() == 1 || values.size() == 2, "max_pool2d",
        std::string(name) + " to be one number or two", values.size());
  return {values.front(), values.back()};
}

struct Window {
  Pair kernel, stride, padding, dilation;
  bool ceil_mode;

  std::vector<std::int64_t> numbers() const {
    return {kernel[0],  kernel[1],   stride[0],   stride[1], padding[0],
            padding[1], dilation[0], dilation[1], ceil_mode};
  }
  static Window of(const std::vector<std::int64_t>& n) {
    return {{n[0], n[1]}, {n[2], n[3]}, {n[4], n[5]}, {n[6], n[7]}, n[8] != 0};
  }

  // The first row, or column, of the window of each output, in the input.
  at::Tensor corners(std::size_t axis, const at::Tensor& output) const {
    const c10::SymInt size = output.sym_size(static_cast<std::int64_t>(axis) - 2);
    const at::Tensor places =
        at::arange(c10::Scalar(size), output.options().dtype(at::kLong)) * stride[axis] -
        padding[axis];
    return axis == 0 ? places.view({-1, 1}) : places;
  }
};

// What is saved is the place in the window, row * width + column in units of the dilation.
constexpr std::int64_t kMaxPlaces = 16;

struct MaxPool2d : Function<MaxPool2d> {
  static constexpr bool is_traceable = true;

  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            std::vector<std::int64_t> numbers) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const Window w = Window::of(numbers);
    const auto [y, indices] =
        at::max_pool2d_with_indices(x, w.kernel, w.stride, w.padding, w.dilation, w.ceil_mode);
    const c10::Scalar width(x.sym_size(-1));
    const at::Tensor row =
        (indices.floor_divide(width) - w.corners(0, y)).floor_divide(w.dilation[0]);
    const at::Tensor column =
        (indices.remainder(width) - w.corners(1, y)).floor_divide(w.dilation[1]);
    const at::Tensor place = (row * w.kernel[1] + column).to(at::kFloat);
    std::vector<double> borders;
    for (std::int64_t i = 0; i + 1 < kMaxPlaces; ++i)
      borders.push_back(static_cast<double>(i) + 0.5);
    context->save_for_backward({codes_of_steps(place, borders, false)});
    context->saved_data["window"] = numbers;
    context->saved_data["strides"] = strides_of_codes(place);
    context->saved_data["input_sizes"] = x.sym_sizes().vec();
    context->saved_data["input_strides"] = strides_of_codes(x);
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list& grads) {
    variable_list result(2);
    const at::Tensor grad = take_gradient(grads);
    if (!grad.defined()) return result;
    const at::Tensor codes = context->get_saved_variables()[0];
    const Window w = Window::of(context->saved_data["window"].toIntVector());
    const auto sizes = context->saved_data["input_sizes"].toSymIntVector();
    at::Tensor indices;
    {
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      std::vector<double> levels;
      for (std::int64_t i = 0; i < kMaxPlaces; ++i) levels.push_back(static_cast<double>(i));
      const at::Tensor ones = at::ones({}, grad.options().dtype(at::kFloat));
      const at::Tensor place =
          call_stepwise_backward(ones.expand_symint(grad.sym_sizes()), codes, levels,
                                 context->saved_data["strides"].toSymIntVector())
              .to(at::kLong);
      const at::Tensor row = w.corners(0, grad) + place.floor_divide(w.kernel[1]) * w.dilation[0];
      const at::Tensor column = w.corners(1, grad) + place.remainder(w.kernel[1]) * w.dilation[1];
      indices = row * c10::Scalar(sizes.back()) + column;
    }
    // torch asks for the input but reads only its shape and layout. A second backward is torch's.
    const at::Tensor x = at::empty_strided_symint(
        sizes, context->saved_data["input_strides"].toSymIntVector(), grad.options());
    result[0] = at::max_pool2d_with_indices_backward(grad, x, w.kernel, w.stride, w.padding,
                                                     w.dilation, w.ceil_mode, indices);
    return result;
  }
};

at::Tensor max_pool2d(const at::Tensor& x, at::IntArrayRef kernel_size, at::IntArrayRef stride,
                      at::IntArrayRef padding, at::IntArrayRef dilation, bool ceil_mode) {
  const Pair kernel = pair_of(kernel_size, "kernel_size");
  if (kernel[0] * kernel[1] > kMaxPlaces || !records_gradient(x))
    return at::max_pool2d(x, kernel_size, stride, padding, dilation, ceil_mode);
  const Window window = {kernel, stride.empty() ? kernel : pair_of(stride, "stride"),
                         pair_of(padding, "padding"), pair_of(dilation, "dilation"), ceil_mode};
  return MaxPool2d::apply(x, window.numbers());
}

}  // namespace

// Composite: what tracing sees is the ops that they are made of.
TORCH_LIBRARY_IMPL(slimgrad, CompositeImplicitAutograd, m) {
  m.impl("dropout", ValueErrors<&dropout>::call);
  m.impl("prelu", ValueErrors<&prelu>::call);
  m.impl("max_pool2d", ValueErrors<&max_pool2d>::call);
}

}  // namespace slimgrad::torch_ops
