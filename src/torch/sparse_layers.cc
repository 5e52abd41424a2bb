// sparse_linear and sparse_conv2d: torch's forward, and a node whose backward calls the ops of
// sparse_backward.cc. A compiled graph sees aten's linear or convolution and those ops.
#include <slimgrad/sparse_layers.h>

#include <ATen/autocast_mode.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/linear.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <vector>

#include "torch/checks.h"
#include "torch/errors.h"
#include "torch/find_op.h"

namespace slimgrad::torch_ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Gradients = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

// State that is not differentiated, kept as it is: backward must see what a step in between wrote.
void keep_state(AutogradContext* context, const SparseLayerState& state, std::int64_t stream) {
  context->set_materialize_grads(false);
  context->saved_data["weight_plan"] = state.weight_plan;
  context->saved_data["weight_stats"] = state.weight_stats;
  context->saved_data["input_plan"] = state.input_plan;
  context->saved_data["input_stats"] = state.input_stats;
  context->saved_data["choice"] = state.choice;
  context->saved_data["stream"] = stream;
}

SparseLayerState kept_state(AutogradContext* context) {
  const auto tensor = [&](const char* name) { return context->saved_data[name].toTensor(); };
  return {tensor("weight_plan"), tensor("weight_stats"), tensor("input_plan"),
          tensor("input_stats"), tensor("choice")};
}

void check_first_backward(const char* op) {
  TORCH_CHECK(!at::GradMode::is_enabled(), "[", op,
              "] expected a first backward pass, got create_graph=True: a pruned gradient has no "
              "derivative");
}

// In the order of x, weight, bias; undefined where not wanted.
variable_list wanted_only(const Gradients& gradients, std::array<bool, 3> wanted) {
  return {wanted[0] ? std::get<0>(gradients) : at::Tensor(),
          wanted[1] ? std::get<1>(gradients) : at::Tensor(),
          wanted[2] ? std::get<2>(gradients) : at::Tensor()};
}

void append_nothing(variable_list& gradients, std::size_t count) {
  gradients.resize(gradients.size() + count);
}

at::Tensor as_matrix(const at::Tensor& x) {
  return x.dim() == 1 ? x.unsqueeze(0) : x.flatten(0, -2);
}

class SparseLinear : public torch::autograd::Function<SparseLinear> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, const at::Tensor& weight_plan,
                            const at::Tensor& weight_stats, const at::Tensor& input_plan,
                            const at::Tensor& input_stats, const at::Tensor& choice,
                            std::int64_t stream) {
    keep_state(context, {weight_plan, weight_stats, input_plan, input_stats, choice}, stream);
    context->save_for_backward({x, weight});
    context->saved_data["has_bias"] = bias.has_value() && bias->requires_grad();
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    return at::linear(x, weight, bias);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    check_first_backward("sparse_linear");
    if (!gradients[0].defined()) return variable_list(9);
    const auto saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1];
    const SparseLayerState state = kept_state(context);
    const std::array<bool, 3> wanted{context->needs_input_grad(0), context->needs_input_grad(1),
                                     context->saved_data["has_bias"].toBool()};
    static const auto op =
        find_op<Gradients(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                          std::array<bool, 3>, at::Tensor, at::Tensor, at::Tensor, at::Tensor,
                          at::Tensor, std::int64_t)>("slimgrad::sparse_linear_backward");
    auto result =
        wanted_only(op.call(as_matrix(gradients[0]), as_matrix(x), weight, wanted,
                            state.weight_plan, state.weight_stats, state.input_plan,
                            state.input_stats, state.choice, context->saved_data["stream"].toInt()),
                    wanted);
    if (wanted[0]) result[0] = result[0].reshape_symint(x.sym_sizes());
    append_nothing(result, 6);
    return result;
  }
};

class SparseConv2d : public torch::autograd::Function<SparseConv2d> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, std::vector<std::int64_t> stride,
                            std::vector<std::int64_t> padding, std::vector<std::int64_t> dilation,
                            std::int64_t groups, const at::Tensor& weight_plan,
                            const at::Tensor& weight_stats, const at::Tensor& input_plan,
                            const at::Tensor& input_stats, const at::Tensor& choice,
                            std::int64_t stream) {
    keep_state(context, {weight_plan, weight_stats, input_plan, input_stats, choice}, stream);
    context->save_for_backward({x, weight});
    context->saved_data["has_bias"] = bias.has_value() && bias->requires_grad();
    context->saved_data["stride"] = stride;
    context->saved_data["padding"] = padding;
    context->saved_data["dilation"] = dilation;
    context->saved_data["groups"] = groups;
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    return at::convolution(x, weight, bias, stride, padding, dilation, false, {0, 0}, groups);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    check_first_backward("sparse_conv2d");
    if (!gradients[0].defined()) return variable_list(13);
    const auto saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1];
    const SparseLayerState state = kept_state(context);
    const std::array<bool, 3> wanted{context->needs_input_grad(0), context->needs_input_grad(1),
                                     context->saved_data["has_bias"].toBool()};
    static const auto op = find_op<Gradients(
        const at::Tensor&, const at::Tensor&, const at::Tensor&, at::IntArrayRef, at::IntArrayRef,
        at::IntArrayRef, std::int64_t, std::array<bool, 3>, at::Tensor, at::Tensor, at::Tensor,
        at::Tensor, at::Tensor, std::int64_t)>("slimgrad::sparse_conv2d_backward");
    const auto ints = [&](const char* name) { return context->saved_data[name].toIntVector(); };
    auto result =
        wanted_only(op.call(gradients[0], x, weight, ints("stride"), ints("padding"),
                            ints("dilation"), context->saved_data["groups"].toInt(), wanted,
                            state.weight_plan, state.weight_stats, state.input_plan,
                            state.input_stats, state.choice, context->saved_data["stream"].toInt()),
                    wanted);
    append_nothing(result, 10);
    return result;
  }
};

at::Tensor linear_autograd(const at::Tensor& x, const at::Tensor& weight,
                           const std::optional<at::Tensor>& bias, const at::Tensor& weight_plan,
                           const at::Tensor& weight_stats, const at::Tensor& input_plan,
                           const at::Tensor& input_stats, const at::Tensor& choice,
                           std::int64_t stream) {
  return SparseLinear::apply(x, weight, bias, weight_plan, weight_stats, input_plan, input_stats,
                             choice, stream);
}

void check_pair(at::IntArrayRef values, const char* name) {
  check(values.size() == 2, "sparse_conv2d", std::string("two numbers as ") + name, values.size());
}

at::Tensor conv2d_autograd(const at::Tensor& x, const at::Tensor& weight,
                           const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                           at::IntArrayRef padding, at::IntArrayRef dilation, std::int64_t groups,
                           const at::Tensor& weight_plan, const at::Tensor& weight_stats,
                           const at::Tensor& input_plan, const at::Tensor& input_stats,
                           const at::Tensor& choice, std::int64_t stream) {
  check(x.dim() == 4, "sparse_conv2d", "x of four dimensions", x.dim());
  check_pair(stride, "stride");
  check_pair(padding, "padding");
  check_pair(dilation, "dilation");
  return SparseConv2d::apply(x, weight, bias, stride.vec(), padding.vec(), dilation.vec(), groups,
                             weight_plan, weight_stats, input_plan, input_stats, choice, stream);
}

at::Tensor linear_plain(const at::Tensor& x, const at::Tensor& weight,
                        const std::optional<at::Tensor>& bias, const at::Tensor&, const at::Tensor&,
                        const at::Tensor&, const at::Tensor&, const at::Tensor&, std::int64_t) {
  return at::linear(x, weight, bias);
}

at::Tensor conv2d_plain(const at::Tensor& x, const at::Tensor& weight,
                        const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                        at::IntArrayRef padding, at::IntArrayRef dilation, std::int64_t groups,
                        const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                        const at::Tensor&, std::int64_t) {
  return at::convolution(x, weight, bias, stride, padding, dilation, false, {0, 0}, groups);
}

// Under autocast the layer's own arguments are cast, as torch casts those of linear and conv2d.
class Cast {
 public:
  explicit Cast(const at::Tensor& x)
      : device_(x.device().type()),
        type_(at::autocast::get_autocast_dtype(device_)),
        no_autocast_(at::autocast::get_autocast_dispatch_key_from_device_type(device_)) {}

  at::Tensor operator()(const at::Tensor& x) const {
    return at::autocast::cached_cast(type_, x, device_);
  }
  std::optional<at::Tensor> operator()(const std::optional<at::Tensor>& x) const {
    return x.has_value() ? std::optional(operator()(*x)) : x;
  }

 private:
  at::DeviceType device_;
  at::ScalarType type_;
  c10::impl::ExcludeDispatchKeyGuard no_autocast_;
};

using LinearSignature = at::Tensor(const at::Tensor&, const at::Tensor&,
                                   const std::optional<at::Tensor>&, const at::Tensor&,
                                   const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                   const at::Tensor&, std::int64_t);
using Conv2dSignature = at::Tensor(const at::Tensor&, const at::Tensor&,
                                   const std::optional<at::Tensor>&, at::IntArrayRef,
                                   at::IntArrayRef, at::IntArrayRef, std::int64_t,
                                   const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                   const at::Tensor&, const at::Tensor&, std::int64_t);

const auto& linear_op() {
  static const auto op = find_op<LinearSignature>("slimgrad::sparse_linear");
  return op;
}
const auto& conv2d_op() {
  static const auto op = find_op<Conv2dSignature>("slimgrad::sparse_conv2d");
  return op;
}

at::Tensor linear_autocast(const at::Tensor& x, const at::Tensor& weight,
                           const std::optional<at::Tensor>& bias, const at::Tensor& weight_plan,
                           const at::Tensor& weight_stats, const at::Tensor& input_plan,
                           const at::Tensor& input_stats, const at::Tensor& choice,
                           std::int64_t stream) {
  const Cast cast(x);
  return linear_op().call(cast(x), cast(weight), cast(bias), weight_plan, weight_stats, input_plan,
                          input_stats, choice, stream);
}

at::Tensor conv2d_autocast(const at::Tensor& x, const at::Tensor& weight,
                           const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                           at::IntArrayRef padding, at::IntArrayRef dilation, std::int64_t groups,
                           const at::Tensor& weight_plan, const at::Tensor& weight_stats,
                           const at::Tensor& input_plan, const at::Tensor& input_stats,
                           const at::Tensor& choice, std::int64_t stream) {
  const Cast cast(x);
  return conv2d_op().call(cast(x), cast(weight), cast(bias), stride, padding, dilation, groups,
                          weight_plan, weight_stats, input_plan, input_stats, choice, stream);
}

}  // namespace

TORCH_LIBRARY_IMPL(slimgrad, CompositeExplicitAutograd, m) {
  m.impl("sparse_linear", linear_plain);
  m.impl("sparse_conv2d", conv2d_plain);
}
TORCH_LIBRARY_IMPL(slimgrad, Autograd, m) {
  m.impl("sparse_linear", ValueErrors<&linear_autograd>::call);
  m.impl("sparse_conv2d", ValueErrors<&conv2d_autograd>::call);
}
TORCH_LIBRARY_IMPL(slimgrad, AutocastCPU, m) {
  m.impl("sparse_linear", linear_autocast);
  m.impl("sparse_conv2d", conv2d_autocast);
}

}  // namespace slimgrad::torch_ops

namespace slimgrad {

at::Tensor sparse_linear(const at::Tensor& x, const at::Tensor& weight,
                         const std::optional<at::Tensor>& bias, const SparseLayerState& state,
                         std::int64_t stream) {
  return torch_ops::linear_op().call(x, weight, bias, state.weight_plan, state.weight_stats,
                                     state.input_plan, state.input_stats, state.choice, stream);
}

at::Tensor sparse_conv2d(const at::Tensor& x, const at::Tensor& weight,
                         const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                         at::IntArrayRef padding, at::IntArrayRef dilation, std::int64_t groups,
                         const SparseLayerState& state, std::int64_t stream) {
  return torch_ops::conv2d_op().call(x, weight, bias, stride, padding, dilation, groups,
                                     state.weight_plan, state.weight_stats, state.input_plan,
                                     state.input_stats, state.choice, stream);
}

}  // namespace slimgrad
