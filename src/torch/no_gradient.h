// Autograd for ops that have no derivative: a tensor that requires a gradient is an error while
// gradients are recorded, never a silent break of the graph.
#ifndef SLIMGRAD_TORCH_NO_GRADIENT_H_
#define SLIMGRAD_TORCH_NO_GRADIENT_H_

#include <torch/library.h>

namespace slimgrad::torch_ops {

// The kernel to register for the key Autograd. It also tells autograd that what an in-place op has
// written is no longer what it was.
torch::CppFunction no_gradient();

}  // namespace slimgrad::torch_ops

#endif  // SLIMGRAD_TORCH_NO_GRADIENT_H_
