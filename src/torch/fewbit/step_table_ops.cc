// Step tables for activation layers, and for derivatives known by samples.
#include <ATen/core/Tensor.h>
#include <ATen/ops/linspace.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include <slimgrad/steps.h>
#include <slimgrad/tensors.h>

#include "base/check.h"
#include "torch/errors.h"

namespace slimgrad::torch_ops {
namespace {

using Table = std::tuple<std::vector<double>, std::vector<double>, double, bool>;

Table as_tuple(const StepTable& table) {
  return {table.borders, table.levels, table.error, table.even};
}

Table activation_steps(std::string_view activation, std::vector<std::string> names,
                       at::ArrayRef<double> values, std::int64_t bits, double low, double high,
                       std::string_view weight) {
  check(names.size() == values.size(), "activation_steps", "a value for every parameter",
        values.size());
  ActivationParams params;
  for (std::size_t i = 0; i < names.size(); ++i) params.emplace(names[i], values[i]);
  return as_tuple(layer_steps(activation, params, static_cast<int>(bits), low, high,
                              parse_step_weight(weight)));
}

// `slopes` are samples of the derivative at equal distances over the whole interval, joined by
// straight lines.
StepTable steps_of_samples(const at::Tensor& slopes, int bits, double low, double high,
                           StepWeight weight, bool even) {
  check(slopes.dim() == 1 && slopes.numel() >= 2, "steps", "at least two samples in one dimension",
        slopes.sizes());
  check(slopes.scalar_type() == at::kDouble, "steps", "float64 samples",
        c10::toString(slopes.scalar_type()));
  const at::Tensor plain = slopes.detach().cpu().contiguous();
  const std::vector<double> samples(plain.data_ptr<double>(),
                                    plain.data_ptr<double>() + plain.numel());
  const double last = static_cast<double>(samples.size() - 1);
  StepTarget target;
  target.even = even;
  target.breaks = {0.0};
  target.derivative = [=](double x) {
    const double position = std::clamp((x - low) / (high - low) * last, 0.0, last);
    const auto i = std::min(static_cast<std::size_t>(position), samples.size() - 2);
    const double fraction = position - static_cast<double>(i);
    return samples[i] + fraction * (samples[i + 1] - samples[i]);
  };
  return steps(target, bits, low, high, weight);
}

Table sampled_steps(const at::Tensor& slopes, std::int64_t bits, double low, double high,
                    std::string_view weight, bool even) {
  return as_tuple(
      steps_of_samples(slopes, static_cast<int>(bits), low, high, parse_step_weight(weight), even));
}

}  // namespace

TORCH_LIBRARY_IMPL(slimgrad, CompositeExplicitAutograd, m) {
  m.impl("activation_steps", ValueErrors<&activation_steps>::call);
  m.impl("sampled_steps", ValueErrors<&sampled_steps>::call);
}

}  // namespace slimgrad::torch_ops

namespace slimgrad {

StepTable steps(const PointwiseFunction& function, int bits, double low, double high,
                StepWeight weight, bool even, std::int64_t num_samples) {
  at::Tensor slopes;
  {
    const at::AutoGradMode with_gradients(true);
    const at::Tensor x =
        at::linspace(low, high, num_samples, at::TensorOptions().dtype(at::kDouble))
            .requires_grad_();
    const at::Tensor y = function(x);
    check(y.defined() && y.sizes() == x.sizes(), "steps", "a pointwise function",
          y.defined() ? y.sizes() : at::IntArrayRef(), " for an input of shape ", x.sizes());
    slopes = torch::autograd::grad({y.sum()}, {x})[0];
  }
  return torch_ops::steps_of_samples(slopes, bits, low, high, weight, even);
}

}  // namespace slimgrad
