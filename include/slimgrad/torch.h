// slimgrad for tensors: what libtorch programs call, all but the modules of nn.h. Linking
// slimgrad::torch also registers every op under torch.ops.slimgrad.
#ifndef SLIMGRAD_TORCH_H_
#define SLIMGRAD_TORCH_H_

#include <ATen/core/Tensor.h>

#include <slimgrad/functional.h>
#include <slimgrad/gradient_gate.h>
#include <slimgrad/saved_tensors.h>
#include <slimgrad/slimgrad.h>
#include <slimgrad/sparse_layers.h>
#include <slimgrad/tensor_files.h>
#include <slimgrad/tensors.h>

#endif  // SLIMGRAD_TORCH_H_
