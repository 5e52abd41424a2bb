// slimgrad for tensors: what libtorch programs call. Linking slimgrad::torch also registers every
// op under torch.ops.slimgrad. Tensors are float32, bfloat16 or float16.
#ifndef SLIMGRAD_TORCH_H_
#define SLIMGRAD_TORCH_H_

#include <ATen/core/Tensor.h>

#include <slimgrad/gradient_gate.h>
#include <slimgrad/saved_tensors.h>
#include <slimgrad/sparse_layers.h>
#include <slimgrad/tensor_stats.h>

namespace slimgrad {

// All statistics of a tensor in one pass, on all of torch's threads. The result does not depend on
// their number. Any layout; a tensor that fills its storage is not copied.
TensorStats measure(const at::Tensor& x);

}  // namespace slimgrad

#endif  // SLIMGRAD_TORCH_H_
