// The three things that few-bit ops do to the elements of tensors, by kernels of the CPU and of
// devices. Both give the same bits.
#ifndef SLIMGRAD_TORCH_FEWBIT_BACKEND_H_
#define SLIMGRAD_TORCH_FEWBIT_BACKEND_H_

#include <ATen/core/Tensor.h>

#include <string_view>

#include "arrays/fewbit/fewbit.h"

namespace slimgrad::torch_ops {

// REQUIRES: dense tensors with equal strides; a result may be the gradient. Codes are checked.
struct FewbitBackend {
  void (*pack_codes)(const at::Tensor& x, const kernels::StepLookup& steps,
                     const at::Tensor& codes);
  void (*multiply_levels)(const at::Tensor& grad, const at::Tensor& codes,
                          const kernels::StepLookup& steps, const at::Tensor& result);
  // By the slope of the activation `name` where its output is y.
  void (*multiply_slopes)(const at::Tensor& grad, const at::Tensor& y, const at::Tensor& codes,
                          std::string_view name, const at::Tensor& result);
};

extern const FewbitBackend kFewbitOnCpu;
extern const FewbitBackend kFewbitOnDevice;

}  // namespace slimgrad::torch_ops

#endif  // SLIMGRAD_TORCH_FEWBIT_BACKEND_H_
