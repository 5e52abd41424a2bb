// Nodes of autograd that save codes of a step table, and whose backward multiplies the gradient
// with its levels.
#ifndef SLIMGRAD_TORCH_FEWBIT_CODES_NODE_H_
#define SLIMGRAD_TORCH_FEWBIT_CODES_NODE_H_

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstddef>
#include <vector>

namespace slimgrad::torch_ops {

// The ops through the dispatcher, so that tracing sees them.
at::Tensor codes_of_steps(const at::Tensor& x, at::ArrayRef<double> borders, bool even);
at::Tensor call_stepwise_backward(const at::Tensor& grad, const at::Tensor& codes,
                                  at::ArrayRef<double> levels, c10::SymIntArrayRef strides);

// The strides of the dense tensor whose storage order the codes of y have (torch/fewbit/ops.h): an
// output of its own has them already; y may have holes where it was written in place, into a slice.
std::vector<c10::SymInt> strides_of_codes(const at::Tensor& y);

// What backward needs; the codes are in the order of `like`.
void save_codes(torch::autograd::AutogradContext* context, const at::Tensor& codes,
                const std::vector<double>& levels, const at::Tensor& like);

// backward of a node with `num_inputs` arguments, of which the first has a gradient.
torch::autograd::variable_list gradient_of_codes(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list& grads,
                                                 std::size_t num_inputs);

}  // namespace slimgrad::torch_ops

#endif  // SLIMGRAD_TORCH_FEWBIT_CODES_NODE_H_
