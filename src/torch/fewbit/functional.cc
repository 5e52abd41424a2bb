// <slimgrad/functional.h>: calls of few-bit ops with torch's arguments.
#include <slimgrad/functional.h>

#include <ATen/ops/rrelu.h>
#include <torch/csrc/autograd/custom_function.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <slimgrad/activations.h>

#include "torch/checks.h"
#include "torch/errors.h"
#include "torch/fewbit/codes_node.h"
#include "torch/find_op.h"

namespace slimgrad {

void check_fewbit_options(const FewbitOptions& fewbit, std::string_view name, bool can_be_exact) {
  if (!fewbit.exact()) return;
  check(can_be_exact, name, "1 to 4 bits", "exact");
  const FewbitOptions other;
  check(fewbit.bits() == other.bits() && fewbit.low() == other.low() &&
            fewbit.high() == other.high() && fewbit.weight() == other.weight(),
        name, "either exact or a table of bits, interval and weight", "both");
}

namespace functional {
namespace {

using torch_ops::check_dense;
using torch_ops::find_op;
using torch_ops::invalid_arguments;

// One for each set of arguments that a program uses, for as long as it runs.
std::shared_ptr<const FewbitActivation> kept_activation(const ActivationCall& call,
                                                        const FewbitOptions& fewbit) {
  using Key = std::tuple<std::string, std::vector<double>, bool, int, double, double, StepWeight>;
  static std::mutex mutex;
  static std::map<Key, std::shared_ptr<const FewbitActivation>> kept;
  const Key key(call.name, call.arguments, call.inplace, fewbit.bits(), fewbit.low(), fewbit.high(),
                fewbit.weight());
  const std::lock_guard lock(mutex);
  std::shared_ptr<const FewbitActivation>& activation = kept[key];
  if (!activation)
    activation = std::make_shared<FewbitActivation>(call, fewbit.bits(), fewbit.low(),
                                                    fewbit.high(), fewbit.weight());
  return activation;
}

// `params` shape the derivative; `extra` are further arguments of torch's function.
at::Tensor activate(const at::Tensor& x, const char* name, const FewbitOptions& fewbit = {},
                    bool inplace = false,
                    const std::vector<std::pair<const char*, double>>& params = {},
                    const std::vector<double>& extra = {}) {
  check_dense(x, name);
  check_fewbit_options(fewbit, name, false);
  ActivationCall call = {.name = name, .inplace = inplace};
  for (const auto& [parameter, value] : params) {
    call.shape[parameter] = value;
    call.arguments.push_back(value);
  }
  call.arguments.insert(call.arguments.end(), extra.begin(), extra.end());
  return (*kept_activation(call, fewbit))(x);
}

at::Tensor activate_or_invert(const at::Tensor& x, const char* name, const FewbitOptions& fewbit,
                              bool inplace = false) {
  if (!fewbit.exact()) return activate(x, name, fewbit, inplace);
  check_fewbit_options(fewbit, name, true);
  check_dense(x, name);
  check(!inplace, name, "inplace to be false with exact", "true");
  return invertible_activation(x, name);
}

}  // namespace

// ---- exact -------------------------------------------------------------------------------------

at::Tensor relu(const at::Tensor& x, bool inplace) { return activate(x, "relu", {}, inplace); }

at::Tensor leaky_relu(const at::Tensor& x, double negative_slope, bool inplace) {
  return activate(x, "leaky_relu", {}, inplace, {{"negative_slope", negative_slope}});
}

at::Tensor rrelu(const at::Tensor& x, double lower, double upper, bool training, bool inplace) {
  check_dense(x, "rrelu");
  check(lower <= upper, "rrelu", "lower <= upper", lower, " and ", upper);
  if (!training) return leaky_relu(x, (lower + upper) / 2, inplace);
  if (!inplace) return at::rrelu(x, lower, upper, true);
  at::Tensor y = x;
  return at::rrelu_(y, lower, upper, true);
}

at::Tensor threshold(const at::Tensor& x, double threshold, double value, bool inplace) {
  return activate(x, "threshold", {}, inplace, {{"threshold", threshold}}, {value});
}

at::Tensor relu6(const at::Tensor& x, bool inplace) { return activate(x, "relu6", {}, inplace); }

at::Tensor hardtanh(const at::Tensor& x, double min_val, double max_val, bool inplace) {
  check(min_val <= max_val, "hardtanh", "min_val <= max_val", min_val, " and ", max_val);
  return activate(x, "hardtanh", {}, inplace, {{"min_val", min_val}, {"max_val", max_val}});
}

at::Tensor hardsigmoid(const at::Tensor& x, bool inplace) {
  return activate(x, "hardsigmoid", {}, inplace);
}

at::Tensor hardshrink(const at::Tensor& x, double lambd) {
  return activate(x, "hardshrink", {}, false, {{"lambd", lambd}});
}

at::Tensor softshrink(const at::Tensor& x, double lambd) {
  return activate(x, "softshrink", {}, false, {{"lambd", lambd}});
}

// ---- with a table ------------------------------------------------------------------------------

at::Tensor gelu(const at::Tensor& x, std::string_view approximate, const FewbitOptions& fewbit) {
  return activate_or_invert(x, gelu_name(approximate).c_str(), fewbit);
}

at::Tensor quick_gelu(const at::Tensor& x, const FewbitOptions& fewbit) {
  return activate(x, "quick_gelu", fewbit);
}

at::Tensor silu(const at::Tensor& x, bool inplace, const FewbitOptions& fewbit) {
  return activate_or_invert(x, "silu", fewbit, inplace);
}

at::Tensor mish(const at::Tensor& x, bool inplace, const FewbitOptions& fewbit) {
  return activate_or_invert(x, "mish", fewbit, inplace);
}

at::Tensor hardswish(const at::Tensor& x, bool inplace, const FewbitOptions& fewbit) {
  return activate(x, "hardswish", fewbit, inplace);
}

at::Tensor sigmoid(const at::Tensor& x, const FewbitOptions& fewbit) {
  return activate(x, "sigmoid", fewbit);
}

at::Tensor logsigmoid(const at::Tensor& x, const FewbitOptions& fewbit) {
  return activate(x, "logsigmoid", fewbit);
}

at::Tensor tanh(const at::Tensor& x, const FewbitOptions& fewbit) {
  return activate(x, "tanh", fewbit);
}

at::Tensor tanhshrink(const at::Tensor& x, const FewbitOptions& fewbit) {
  return activate(x, "tanhshrink", fewbit);
}

at::Tensor softsign(const at::Tensor& x, const FewbitOptions& fewbit) {
  return activate(x, "softsign", fewbit);
}

at::Tensor softplus(const at::Tensor& x, double beta, double threshold,
                    const FewbitOptions& fewbit) {
  return activate(x, "softplus", fewbit, false, {{"beta", beta}, {"threshold", threshold}});
}

at::Tensor elu(const at::Tensor& x, double alpha, bool inplace, const FewbitOptions& fewbit) {
  return activate(x, "elu", fewbit, inplace, {{"alpha", alpha}});
}

at::Tensor celu(const at::Tensor& x, double alpha, bool inplace, const FewbitOptions& fewbit) {
  return activate(x, "celu", fewbit, inplace, {{"alpha", alpha}});
}

at::Tensor selu(const at::Tensor& x, bool inplace, const FewbitOptions& fewbit) {
  return activate(x, "selu", fewbit, inplace);
}

// ---- others ------------------------------------------------------------------------------------

namespace {

struct Stepwise : torch::autograd::Function<Stepwise> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            PointwiseFunction function, StepTable table) {
    const at::Tensor codes = torch_ops::codes_of_steps(x, table.borders, table.even);
    const at::Tensor y = function(x);
    check(y.defined() && y.sizes() == x.sizes() && y.scalar_type() == x.scalar_type(), "stepwise",
          "f to keep shape and dtype", y.defined() ? y.toString() : "none");
    torch_ops::save_codes(context, codes, table.levels, x);
    return y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list& grads) {
    return torch_ops::gradient_of_codes(context, grads, 3);
  }
};

}  // namespace

at::Tensor stepwise(const at::Tensor& x, const PointwiseFunction& f, const StepTable& table) {
  check_dense(x, "stepwise");
  torch_ops::check_float_dtype(x, "stepwise");
  return invalid_arguments([&] { return Stepwise::apply(x, f, table); });
}

at::Tensor prelu(const at::Tensor& x, const at::Tensor& weight) {
  check_dense(x, "prelu");
  check_dense(weight, "prelu", "weight");
  static const auto op =
      find_op<at::Tensor(const at::Tensor&, const at::Tensor&)>("slimgrad::prelu");
  return invalid_arguments([&] { return op.call(x, weight); });
}

at::Tensor dropout(const at::Tensor& x, double p, bool training) {
  check_dense(x, "dropout");
  static const auto op = find_op<at::Tensor(const at::Tensor&, double, bool)>("slimgrad::dropout");
  return invalid_arguments([&] { return op.call(x, p, training); });
}

at::Tensor max_pool2d(const at::Tensor& x, at::IntArrayRef kernel_size, at::IntArrayRef stride,
                      at::IntArrayRef padding, at::IntArrayRef dilation, bool ceil_mode) {
  check_dense(x, "max_pool2d");
  static const auto op =
      find_op<at::Tensor(const at::Tensor&, at::IntArrayRef, at::IntArrayRef, at::IntArrayRef,
                         at::IntArrayRef, bool)>("slimgrad::max_pool2d");
  return invalid_arguments(
      [&] { return op.call(x, kernel_size, stride, padding, dilation, ceil_mode); });
}

}  // namespace functional
}  // namespace slimgrad
