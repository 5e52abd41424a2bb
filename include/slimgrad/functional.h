// torch::nn::functional's activations with a few bits saved for backward, dropout and max pooling
// with less than torch saves. They are Python's slimgrad.functional, with its defaults and results.
//
// The result is torch's to the last bit. relu, leaky_relu, threshold, relu6, hardtanh, hardsigmoid,
// hardshrink, softshrink, prelu, dropout and max_pool2d have exact gradients; those of the others
// are the incoming one times a level of a step table (activations.h), which FewbitOptions choose. A
// table is found at the first call that needs it, which takes a few milliseconds, and kept.
//
// Without gradients each is torch's own. A second backward throws, but for max_pool2d. Throws
// InvalidArgument for misuse. Functions may be called from several threads at once.
#ifndef SLIMGRAD_FUNCTIONAL_H_
#define SLIMGRAD_FUNCTIONAL_H_

#include <ATen/core/Tensor.h>
#include <torch/arg.h>

#include <string_view>

#include <slimgrad/steps.h>
#include <slimgrad/tensors.h>

namespace slimgrad {

struct FewbitOptions {
  TORCH_ARG(int, bits) = 3;  // 1 to 4
  // For GELU, SiLU and Mish: saves the output and one bit, so that there is no table to choose.
  TORCH_ARG(bool, exact) = false;
  TORCH_ARG(double, low) = -10;  // the interval that the table is made for
  TORCH_ARG(double, high) = 10;
  TORCH_ARG(StepWeight, weight) = StepWeight::kNormal;
};

// Throws InvalidArgument, in the name of the activation, for options that would have no effect.
void check_fewbit_options(const FewbitOptions& fewbit, std::string_view name, bool can_be_exact);

namespace functional {

at::Tensor relu(const at::Tensor& x, bool inplace = false);
at::Tensor leaky_relu(const at::Tensor& x, double negative_slope = 0.01, bool inplace = false);
// In evaluation a leaky_relu with the mean slope. In training torch's own: slopes are random.
at::Tensor rrelu(const at::Tensor& x, double lower = 1.0 / 8, double upper = 1.0 / 3,
                 bool training = false, bool inplace = false);
at::Tensor threshold(const at::Tensor& x, double threshold, double value, bool inplace = false);
at::Tensor relu6(const at::Tensor& x, bool inplace = false);
at::Tensor hardtanh(const at::Tensor& x, double min_val = -1, double max_val = 1,
                    bool inplace = false);
at::Tensor hardsigmoid(const at::Tensor& x, bool inplace = false);
at::Tensor hardshrink(const at::Tensor& x, double lambd = 0.5);
at::Tensor softshrink(const at::Tensor& x, double lambd = 0.5);

at::Tensor gelu(const at::Tensor& x, std::string_view approximate = "none",
                const FewbitOptions& fewbit = {});
at::Tensor quick_gelu(const at::Tensor& x, const FewbitOptions& fewbit = {});
at::Tensor silu(const at::Tensor& x, bool inplace = false, const FewbitOptions& fewbit = {});
at::Tensor mish(const at::Tensor& x, bool inplace = false, const FewbitOptions& fewbit = {});
at::Tensor hardswish(const at::Tensor& x, bool inplace = false, const FewbitOptions& fewbit = {});
at::Tensor sigmoid(const at::Tensor& x, const FewbitOptions& fewbit = {});
at::Tensor logsigmoid(const at::Tensor& x, const FewbitOptions& fewbit = {});
at::Tensor tanh(const at::Tensor& x, const FewbitOptions& fewbit = {});
at::Tensor tanhshrink(const at::Tensor& x, const FewbitOptions& fewbit = {});
at::Tensor softsign(const at::Tensor& x, const FewbitOptions& fewbit = {});
at::Tensor softplus(const at::Tensor& x, double beta = 1, double threshold = 20,
                    const FewbitOptions& fewbit = {});
at::Tensor elu(const at::Tensor& x, double alpha = 1, bool inplace = false,
               const FewbitOptions& fewbit = {});
at::Tensor celu(const at::Tensor& x, double alpha = 1, bool inplace = false,
                const FewbitOptions& fewbit = {});
at::Tensor selu(const at::Tensor& x, bool inplace = false, const FewbitOptions& fewbit = {});

// f(x) for any pointwise f, with the gradient of a step table (steps() in tensors.h finds one). f
// runs without autograd and must not change x.
at::Tensor stepwise(const at::Tensor& x, const PointwiseFunction& f, const StepTable& table);

// torch's prelu with a weight that takes no gradient, which is checked; saves one bit per element.
at::Tensor prelu(const at::Tensor& x, const at::Tensor& weight);

// torch's dropout, with the same mask for the same state of torch's generator; saves one bit per
// element.
at::Tensor dropout(const at::Tensor& x, double p = 0.5, bool training = true);

// torch's max_pool2d; saves 4 bits per output. Windows of more than 16 places are torch's own.
at::Tensor max_pool2d(const at::Tensor& x, at::IntArrayRef kernel_size, at::IntArrayRef stride = {},
                      at::IntArrayRef padding = 0, at::IntArrayRef dilation = 1,
                      bool ceil_mode = false);

}  // namespace functional
}  // namespace slimgrad

#endif  // SLIMGRAD_FUNCTIONAL_H_
