// sparse_linear and sparse_conv2d: torch's forward, and a node whose backward calls the ops of
// sparse/backward.cc. A compiled graph sees aten's linear or convolution and those ops.
#include <slimgrad/sparse_layers.h>

#include <ATen/autocast_mode.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/linear.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <vector>

#include "base/check.h"
#include "torch/errors.h"
#include "torch/find_op.h"
#include "torch/second_backward.h"
#include "torch/sparse/product_choice.h"
#include "torch/sparse/products.h"

namespace slimgrad::torch_ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Bias = std::optional<Tensor>;
using Gradients = std::tuple<Tensor, Tensor, Tensor>;
using Lists = std::vector<std::vector<std::int64_t>>;

struct Call {
  const Tensor &x, &weight;
  const Bias& bias;
  const ConvArguments& conv;
  const SparseLayerState state;
  std::int64_t stream;
};

void check_conv2d(const Tensor& x, const ConvArguments& conv) {
  check(x.dim() == 4, "sparse_conv2d", "x of four dimensions", x.dim());
  for (const auto& [name, values] : {std::pair("stride", &conv.stride),
                                     {"padding", &conv.padding},
                                     {"dilation", &conv.dilation}})
    check(values->size() == 2, "sparse_conv2d", std::string("two numbers as ") + name,
          values->size());
}

// A linear layer's backward works on matrices.
Tensor as_matrix(const Tensor& x) { return x.dim() == 1 ? x.unsqueeze(0) : x.flatten(0, -2); }

// The op and its kernels. Conv: nothing, or stride, padding, dilation and groups.
template <typename... Conv>
struct Layer {
  static constexpr bool kIsLinear = sizeof...(Conv) == 0;
  static constexpr const char* kOp = kIsLinear ? "sparse_linear" : "sparse_conv2d";

  // A kernel as the dispatcher calls it, with all arguments one by one.
  template <Tensor (*kernel)(const Call&)>
  static Tensor spread(const Tensor& x, const Tensor& weight, const Bias& bias, Conv... conv,
                       at::TensorList state, std::int64_t stream) {
    const ConvArguments arguments(conv...);
    return kernel({x, weight, bias, arguments, SparseLayerState::from_list(state, kOp), stream});
  }

  static Tensor plain(const Call& c) {
    if constexpr (kIsLinear)
      return at::linear(c.x, c.weight, c.bias);
    else
      return at::convolution(c.x, c.weight, c.bias, c.conv.stride, c.conv.padding, c.conv.dilation,
                             false, {0, 0}, c.conv.groups);
  }

  // The layer's own arguments are cast, as torch casts those of linear and conv2d.
  static Tensor autocast(const Call& c) {
    using namespace at::autocast;
    const at::DeviceType device = c.x.device().type();
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(
        get_autocast_dispatch_key_from_device_type(device));
    const auto cast = [&](const auto& x) {
      return cached_cast(get_autocast_dtype(device), x, device);
    };
    return call({cast(c.x), cast(c.weight), cast(c.bias), c.conv, c.state, c.stream});
  }

  static Tensor autograd(const Call& c) {
    if constexpr (!kIsLinear) check_conv2d(c.x, c.conv);
    check_layer_state(c.x, c.state, kOp);
    return Node::apply(c.x, c.weight, c.bias, c);
  }

  static Tensor call(const Call& c) {
    static const auto op = find_op<decltype(spread<plain>)>(kIsLinear ? "slimgrad::sparse_linear"
                                                                      : "slimgrad::sparse_conv2d");
    const std::vector<Tensor> state = c.state.list();
    return with_conv(c.conv, [&](Conv... conv) {
      return op.call(c.x, c.weight, c.bias, conv..., state, c.stream);
    });
  }

 private:
  template <typename Function>
  static auto with_conv(const ConvArguments& conv, const Function& function) {
    if constexpr (kIsLinear)
      return function();
    else
      return function(conv.stride, conv.padding, conv.dilation, conv.groups);
  }

  struct Node : torch::autograd::Function<Node> {
    // The state is not differentiated, and kept as it is: backward must see what a step in between
    // wrote.
    static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight,
                          const Bias& bias, const Call& c) {
      context->set_materialize_grads(false);
      context->save_for_backward({x, weight});
      auto& kept = context->saved_data;
      kept["has_bias"] = bias.has_value() && bias->requires_grad();
      if (!kIsLinear)
        kept["conv"] = Lists{c.conv.stride, c.conv.padding, c.conv.dilation, {c.conv.groups}};
      kept["state"] = c.state.list();
      kept["stream"] = c.stream;
      at::AutoDispatchBelowADInplaceOrView below_autograd;
      return plain(c);
    }

    static variable_list backward(AutogradContext* context, const variable_list& gradients) {
      check_first_backward(kOp);
      static const auto op = find_op<Gradients(const Tensor&, const Tensor&, const Tensor&, Conv...,
                                               std::array<bool, 3>, at::TensorList, std::int64_t)>(
          kIsLinear ? "slimgrad::sparse_linear_backward" : "slimgrad::sparse_conv2d_backward");
      variable_list result(4);
      if (!gradients[0].defined()) return result;
      auto& kept = context->saved_data;
      const std::array<bool, 3> wanted{context->needs_input_grad(0), context->needs_input_grad(1),
                                       kept["has_bias"].toBool()};
      const variable_list saved = context->get_saved_variables(),
                          state = kept["state"].toTensorVector();
      const Lists lists = kIsLinear ? Lists{{}, {}, {}, {1}} : kept["conv"].to<Lists>();
      const auto flat = [](const Tensor& x) { return kIsLinear ? as_matrix(x) : x; };
      const auto [dx, dw, bias] =
          with_conv(ConvArguments(lists[0], lists[1], lists[2], lists[3][0]), [&](Conv... conv) {
            return op.call(flat(gradients[0]), flat(saved[0]), saved[1], conv..., wanted, state,
                           kept["stream"].toInt());
          });
      if (wanted[0]) result[0] = kIsLinear ? dx.reshape_symint(saved[0].sym_sizes()) : dx;
      if (wanted[1]) result[1] = dw;
      if (wanted[2]) result[2] = bias;
      return result;
    }
  };
};
using Linear = Layer<>;
using Conv2d = Layer<at::IntArrayRef, at::IntArrayRef, at::IntArrayRef, std::int64_t>;

}  // namespace

TORCH_LIBRARY_IMPL(slimgrad, CompositeExplicitAutograd, m) {
  m.impl("sparse_linear", ValueErrors<&Linear::spread<Linear::plain>>::call);
  m.impl("sparse_conv2d", ValueErrors<&Conv2d::spread<Conv2d::plain>>::call);
}
TORCH_LIBRARY_IMPL(slimgrad, Autograd, m) {
  m.impl("sparse_linear", ValueErrors<&Linear::spread<Linear::autograd>>::call);
  m.impl("sparse_conv2d", ValueErrors<&Conv2d::spread<Conv2d::autograd>>::call);
}
TORCH_LIBRARY_IMPL(slimgrad, AutocastCPU, m) {
  m.impl("sparse_linear", ValueErrors<&Linear::spread<Linear::autocast>>::call);
  m.impl("sparse_conv2d", ValueErrors<&Conv2d::spread<Conv2d::autocast>>::call);
}

}  // namespace slimgrad::torch_ops

namespace slimgrad {

at::Tensor sparse_linear(const at::Tensor& x, const at::Tensor& weight,
                         const std::optional<at::Tensor>& bias, const SparseLayerState& state,
                         std::int64_t stream) {
  return torch_ops::invalid_arguments([&] {
    return torch_ops::Linear::call({x, weight, bias, {}, state, stream});
  });
}

at::Tensor sparse_conv2d(const at::Tensor& x, const at::Tensor& weight,
                         const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                         at::IntArrayRef padding, at::IntArrayRef dilation, std::int64_t groups,
                         const SparseLayerState& state, std::int64_t stream) {
  return torch_ops::invalid_arguments([&] {
    return torch_ops::Conv2d::call(
        {x, weight, bias, {stride, padding, dilation, groups}, state, stream});
  });
}

}  // namespace slimgrad
