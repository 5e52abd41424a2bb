// What is done with a tensor that autograd saves.
#ifndef SLIMGRAD_RUNTIME_SAVED_SAVING_RULES_H_
#define SLIMGRAD_RUNTIME_SAVED_SAVING_RULES_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

namespace torch::autograd {
struct Node;
}

namespace slimgrad::runtime {

// Why a tensor is saved as it is, as reports say it.
using Reason = std::string_view;
namespace left {
// The first three are not counted: they live anyway, or not for long.
constexpr Reason kLeaf = "parameters and other leaves of the graph";
constexpr Reason kOfLeaf = "views and casts of leaves";
constexpr Reason kInBackward = "saved inside backward: recomputed, or for second derivatives";
constexpr Reason kNoGradient = "inputs, buffers and statistics: no gradient goes through them";
constexpr Reason kCompiled =
    "saved by a graph of torch.compile, which does not say what it needs exactly";
constexpr Reason kTraced =
    "under a TorchDispatchMode, which may be a trace with tensors without values";
constexpr Reason kType = "masks, indices and other types than float32, bfloat16, float16";
constexpr Reason kSubclass = "tensor subclasses, sparse tensors, devices without kernels";
constexpr Reason kSmall = "small";
constexpr Reason kExpanded = "expanded: elements share their memory";
constexpr Reason kCheckpoint = "inputs of checkpointed parts: recomputing needs every bit";
constexpr Reason kNotFinite = "holds NaN or Inf, or numbers too far apart";
constexpr Reason kExcluded = "excluded";
constexpr Reason kLogarithm = "log-softmax of 16 bits: backward takes its exponential";
constexpr Reason kDense = "no zeros to leave out";
constexpr Reason kExactDevice =
    "on a GPU, where the host would have to wait for the number of bytes that exact packing takes";
// In graphs of torch.compile, where who reads a tensor is known.
constexpr Reason kSoftmax = "read by softmax or log-softmax in a compiled backward pass";
constexpr Reason kLayout = "read with strides of its own in a compiled backward pass";
constexpr Reason kCompared = "compared for equality in a compiled backward pass, as by amax";
constexpr Reason kExactGraph = "in a compiled graph, where exact packing has no size of its own";
}  // namespace left

constexpr bool lives_anyway(Reason why) {
  return why == left::kLeaf || why == left::kOfLeaf || why == left::kInBackward;
}

// What type, size and strides alone say, for eager passes and for graphs of torch.compile.
Reason reason_by_form(const at::Tensor& x, std::int64_t min_elements);

// Empty if the tensor is to be packed. saved_by: as SavedTensors::pack() takes it.
Reason reason_to_leave(const at::Tensor& x, std::int64_t min_elements, std::string_view saved_by);

// Whether what is left for this reason is stored exactly, in fewer bytes, where its values allow
// it. Dropout on the CPU saves its mask as floats, which no gradient goes through; indices have 8
// bytes each. Only what lies without gaps is looked at: an expanded mask is small as it is.
bool may_be_smaller(const at::Tensor& x, Reason why, std::int64_t min_elements);

// Whether a small tensor is part of so large a storage that it is copied: it would hold all of it.
bool is_copied(const at::Tensor& x, Reason why);

// Whether backward takes the exponential of x and subtracts 1: where a model is sure of itself that
// is near 0, and a step of 8 bits would be most of it.
bool is_logarithm(const at::Tensor& x);

// Whether a node hands a parameter on: autocast's copies, and views.
bool is_cast_or_view(const torch::autograd::Node& node);

}  // namespace slimgrad::runtime

#endif  // SLIMGRAD_RUNTIME_SAVED_SAVING_RULES_H_
