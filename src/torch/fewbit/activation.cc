#include "torch/fewbit/activation.h"

#include <ATen/ops/abs.h>
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/div.h>
#include <ATen/ops/elu.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/hardshrink.h>
#include <ATen/ops/hardsigmoid.h>
#include <ATen/ops/hardswish.h>
#include <ATen/ops/hardtanh.h>
#include <ATen/ops/leaky_relu.h>
#include <ATen/ops/log_sigmoid.h>
#include <ATen/ops/mish.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/softshrink.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/threshold.h>

#include <string>

#include "base/check.h"

namespace slimgrad::torch_ops {

struct Activation::Entry {
  std::string_view name;
  std::size_t num_params;
  bool has_inplace;
  Apply apply;
};

namespace {

using Params = at::ArrayRef<double>;

// torch's own constants.
constexpr double kSeluAlpha = 1.6732632423543772848170429916717;
constexpr double kSeluScale = 1.0507009873554804934193349852946;

void softsign(const at::Tensor& x, Params, at::Tensor& y) {
  at::abs_out(y, x);
  y.add_(1);
  at::div_out(y, x, y);
}

void tanhshrink(const at::Tensor& x, Params, at::Tensor& y) {
  at::tanh_out(y, x);
  at::sub_out(y, x, y);
}

void quick_gelu(const at::Tensor& x, Params, at::Tensor& y) {
  at::mul_out(y, x, at::scalar_tensor(1.702, at::TensorOptions().dtype(at::kDouble)));
  y.sigmoid_();
  at::mul_out(y, x, y);
}

}  // namespace

#define SLIMGRAD_FORWARD(...) \
  [](const at::Tensor& x, [[maybe_unused]] Params p, at::Tensor& y) { __VA_ARGS__; }

const Activation::Entry* Activation::find(std::string_view name) {
  static constexpr Entry kEntries[] = {
      {"relu", 0, true, SLIMGRAD_FORWARD(at::clamp_min_out(y, x, 0))},
      {"leaky_relu", 1, true, SLIMGRAD_FORWARD(at::leaky_relu_out(y, x, p[0]))},
      {"threshold", 2, true, SLIMGRAD_FORWARD(at::threshold_out(y, x, p[0], p[1]))},
      {"relu6", 0, true, SLIMGRAD_FORWARD(at::hardtanh_out(y, x, 0, 6))},
      {"hardtanh", 2, true, SLIMGRAD_FORWARD(at::hardtanh_out(y, x, p[0], p[1]))},
      {"hardsigmoid", 0, true, SLIMGRAD_FORWARD(at::hardsigmoid_out(y, x))},
      {"hardshrink", 1, false, SLIMGRAD_FORWARD(at::hardshrink_out(y, x, p[0]))},
      {"softshrink", 1, false, SLIMGRAD_FORWARD(at::softshrink_out(y, x, p[0]))},
      {"hardswish", 0, true, SLIMGRAD_FORWARD(at::hardswish_out(y, x))},
      {"gelu", 0, false, SLIMGRAD_FORWARD(at::gelu_out(y, x, "none"))},
      {"gelu_tanh", 0, false, SLIMGRAD_FORWARD(at::gelu_out(y, x, "tanh"))},
      {"quick_gelu", 0, false, quick_gelu},
      {"silu", 0, true, SLIMGRAD_FORWARD(at::silu_out(y, x))},
      {"mish", 0, true, SLIMGRAD_FORWARD(at::mish_out(y, x))},
      {"sigmoid", 0, false, SLIMGRAD_FORWARD(at::sigmoid_out(y, x))},
      {"logsigmoid", 0, false, SLIMGRAD_FORWARD(at::log_sigmoid_out(y, x))},
      {"tanh", 0, false, SLIMGRAD_FORWARD(at::tanh_out(y, x))},
      {"tanhshrink", 0, false, tanhshrink},
      {"softsign", 0, false, softsign},
      {"softplus", 2, false, SLIMGRAD_FORWARD(at::softplus_out(y, x, p[0], p[1]))},
      {"elu", 1, true, SLIMGRAD_FORWARD(at::elu_out(y, x, p[0]))},
      {"celu", 1, true, SLIMGRAD_FORWARD(at::elu_out(y, x, p[0], 1.0, 1.0 / p[0]))},
      {"selu", 0, true, SLIMGRAD_FORWARD(at::elu_out(y, x, kSeluAlpha, kSeluScale))},
  };
  for (const Entry& entry : kEntries)
    if (entry.name == name) return &entry;
  return nullptr;
}

#undef SLIMGRAD_FORWARD

Activation::Activation(std::string_view op, std::string_view name, at::ArrayRef<double> params)
    : params_(params) {
  const Entry* entry = find(name);
  if (!entry) throw_invalid(op, "the name of an activation, such as gelu", '\'', name, '\'');
  check(params.size() == entry->num_params, op,
        std::to_string(entry->num_params) + " parameters for " + std::string(name), params.size());
  apply_ = entry->apply;
  name_ = entry->name;
  has_inplace_ = entry->has_inplace;
}

void Activation::check_inplace(std::string_view op) const {
  check(has_inplace_, op, "an activation that torch has in place", name_);
}

}  // namespace slimgrad::torch_ops
