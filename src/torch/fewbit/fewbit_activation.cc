#include <slimgrad/activations.h>

#include <utility>

#include "base/check.h"
#include "formats/fewbit.h"
#include "torch/errors.h"
#include "torch/find_op.h"

namespace slimgrad {

FewbitActivation::FewbitActivation(ActivationCall call, int bits, double low, double high,
                                   StepWeight weight)
    : call_(std::move(call)) {
  check(1 <= bits && bits <= fewbit::kMaxBits, call_.name, "1, 2, 3 or 4 bits", bits);
  table_ = layer_steps(call_.name, call_.shape, bits, low, high, weight);
}

at::Tensor FewbitActivation::operator()(at::Tensor x) const {
  using Doubles = at::ArrayRef<double>;
  static const auto op =
      torch_ops::find_op<at::Tensor(const at::Tensor&, std::string_view, Doubles, Doubles, Doubles,
                                    bool)>("slimgrad::fewbit_activation");
  static const auto inplace_op =
      torch_ops::find_op<void(at::Tensor&, std::string_view, Doubles, Doubles, Doubles, bool)>(
          "slimgrad::fewbit_activation_");
  return torch_ops::invalid_arguments([&] {
    if (!call_.inplace)
      return op.call(x, call_.name, call_.arguments, table_.borders, table_.levels, table_.even);
    inplace_op.call(x, call_.name, call_.arguments, table_.borders, table_.levels, table_.even);
    return x;
  });
}

std::string gelu_name(std::string_view approximate) {
  check(approximate == "none" || approximate == "tanh", "gelu", "approximate to be none or tanh",
        '\'', approximate, '\'');
  return approximate == "tanh" ? "gelu_tanh" : "gelu";
}

at::Tensor invertible_activation(const at::Tensor& x, std::string_view name) {
  static const auto op = torch_ops::find_op<at::Tensor(const at::Tensor&, std::string_view)>(
      "slimgrad::invertible_activation");
  return torch_ops::invalid_arguments([&] { return op.call(x, name); });
}

}  // namespace slimgrad
