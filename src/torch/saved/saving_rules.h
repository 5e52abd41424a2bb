// What is done with a tensor that autograd saves. python/slimgrad/saved/rules.py has the same rules
// for the hooks of Python, with those for what only Python has: compiled graphs, checkpointing.
#ifndef SLIMGRAD_TORCH_SAVED_SAVING_RULES_H_
#define SLIMGRAD_TORCH_SAVED_SAVING_RULES_H_

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>

namespace slimgrad::torch_ops {

enum class Saving {
  kLivesAnyway,  // parameters, their views and casts; what is saved inside backward
  kLeft,         // as it is
  kCopied,       // a small piece of a large storage, which would hold all of it
  kIndices,      // integers, in fewer bytes if they are small
  kMask,         // no gradient goes through it: a bit a value if it is a mask
  kLogarithm,    // backward takes its exponential
  kPacked,
};

// Whether a node hands a parameter on: autocast's copies, and views.
bool is_cast_or_view(const torch::autograd::Node& node);

Saving saving_of(const at::Tensor& x, std::int64_t min_elements);

}  // namespace slimgrad::torch_ops

#endif  // SLIMGRAD_TORCH_SAVED_SAVING_RULES_H_
