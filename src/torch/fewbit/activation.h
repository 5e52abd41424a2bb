// torch's own pointwise activations, by name: the forward side of the few-bit layers, which must
// give torch's result to the last bit and therefore calls torch.
#ifndef SLIMGRAD_TORCH_FEWBIT_ACTIVATION_H_
#define SLIMGRAD_TORCH_FEWBIT_ACTIVATION_H_

#include <ATen/core/Tensor.h>

#include <string_view>

namespace slimgrad::torch_ops {

// An activation with its parameters, in the order in which torch's function takes them:
//   leaky_relu (negative_slope), threshold (threshold, value), hardtanh (min_val, max_val),
//   hardshrink, softshrink (lambd), elu, celu (alpha), softplus (beta, threshold); others none.
class Activation {
 public:
  // Throws InvalidArgument for an unknown name or a wrong number of parameters.
  Activation(std::string_view op, std::string_view name, at::ArrayRef<double> params);

  // y = f(x), with torch's out variants: y has the sizes of x, and may be x where torch offers the
  // activation in place.
  void apply(const at::Tensor& x, at::Tensor& y) const { apply_(x, params_, y); }

  // Throws InvalidArgument unless torch offers the activation in place.
  void check_inplace(std::string_view op) const;

 private:
  using Apply = void (*)(const at::Tensor& x, at::ArrayRef<double> params, at::Tensor& y);
  struct Entry;
  static const Entry* find(std::string_view name);

  Apply apply_;
  at::ArrayRef<double> params_;
  std::string_view name_;
  bool has_inplace_;
};

}  // namespace slimgrad::torch_ops

#endif  // SLIMGRAD_TORCH_FEWBIT_ACTIVATION_H_
