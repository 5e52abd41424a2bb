// Activations that save 1 to 4 bits per element for backward instead of their input.
//
// The result is torch's to the last bit. The gradient is the incoming one times a level of the step
// table (steps.h); where the derivative is piecewise constant, as ReLU's is, that is exact. A
// gradient without other references is overwritten. A second backward throws. An activation is a
// value, and any thread may call it.
#ifndef SLIMGRAD_ACTIVATIONS_H_
#define SLIMGRAD_ACTIVATIONS_H_

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>
#include <vector>

#include <slimgrad/steps.h>

namespace slimgrad {

// One of torch's activations as slimgrad names it (activation_names()).
struct ActivationCall {
  std::string name;
  ActivationParams shape = {};         // the parameters that the derivative depends on
  std::vector<double> arguments = {};  // those of torch's function, in its order, without inplace
  bool inplace = false;
};

class FewbitActivation {
 public:
  // Finds the table, which takes a few milliseconds. With 1 to 4 bits; those that are exact take
  // the 1 or 2 bits they need, whatever `bits` says. Throws InvalidArgument.
  FewbitActivation(ActivationCall call, int bits, double low = -10, double high = 10,
                   StepWeight weight = StepWeight::kNormal);

  at::Tensor operator()(at::Tensor x) const;

  const std::string& name() const { return call_.name; }
  const StepTable& table() const { return table_; }

 private:
  ActivationCall call_;
  StepTable table_;
};

// "gelu" for torch's approximate = "none", "gelu_tanh" for "tanh". Throws InvalidArgument.
std::string gelu_name(std::string_view approximate);

// "gelu", "gelu_tanh", "silu" or "mish" from its output, which is saved, and one bit per element:
// free where the next layer saves that output anyway, and exact to about 4e-4 in float32.
at::Tensor invertible_activation(const at::Tensor& x, std::string_view name);

}  // namespace slimgrad

#endif  // SLIMGRAD_ACTIVATIONS_H_
