#include "runtime/saved/saving_rules.h"

#include <ATen/TensorSubclassLikeUtils.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "torch/checks.h"
#include "torch/device/launcher.h"

namespace slimgrad::runtime {
namespace {

constexpr std::array<std::string_view, 16> kCastsAndViews = {
    "ToCopyBackward0",  "TBackward0",      "TransposeBackward0",      "PermuteBackward0",
    "ViewBackward0",    "SliceBackward0",  "UnsafeViewBackward0",     "ReshapeAliasBackward0",
    "AliasBackward0",   "ExpandBackward0", "UnsqueezeBackward0",      "SqueezeBackward0",
    "SqueezeBackward1", "SelectBackward0", "SplitWithSizesBackward0", "SplitBackward0"};

bool comes_from_leaf(const at::Tensor& x) {
  if (x.is_view()) {
    const at::Tensor base(x._base());
    return base.requires_grad() && (base.is_leaf() || comes_from_leaf(base));
  }
  const torch::autograd::Node* node = x.grad_fn().get();
  while (node != nullptr && is_cast_or_view(*node)) {
    node = node->next_edge(0).function.get();
    if (dynamic_cast<const torch::autograd::AccumulateGrad*>(node) != nullptr) return true;
  }
  return false;
}

// Several of its elements are one in memory.
bool is_expanded(const at::Tensor& x) {
  for (std::int64_t i = 0; i < x.dim(); ++i)
    if (x.stride(i) == 0 && x.size(i) > 1) return true;
  return false;
}

bool has_kernels(const at::Tensor& x) {
  return x.device().is_cpu() || torch_ops::has_device_kernels(x.device().type());
}

bool is_large(const at::Tensor& x, std::int64_t min_elements) {
  return x.numel() >= std::max<std::int64_t>(min_elements, 1);
}

}  // namespace

Reason reason_by_form(const at::Tensor& x, std::int64_t min_elements) {
  if (!torch_ops::is_float_dtype(x.scalar_type())) return left::kType;
  if (!is_large(x, min_elements)) return left::kSmall;
  return is_expanded(x) ? left::kExpanded : Reason();
}

Reason reason_to_leave(const at::Tensor& x, std::int64_t min_elements, std::string_view saved_by) {
  if (x.is_leaf() && x.requires_grad()) return left::kLeaf;
  if (saved_by == "subclass" || x.key_set().has_any(at::kTensorSubclassLike) ||
      x.layout() != at::kStrided || !has_kernels(x))
    return left::kSubclass;
  if (saved_by == "trace" || c10::impl::TorchDispatchModeTLS::stack_len() > 0) return left::kTraced;
  const Reason form = reason_by_form(x, min_elements);
  if (form == left::kType) return form;
  if (torch::autograd::get_current_graph_task_id() != -1) return left::kInBackward;
  if (x.is_leaf()) {  // Inside a compiled graph nothing has a gradient: it is a single node.
    const bool is_compiled = saved_by == "compiled graph" && x.numel() >= min_elements;
    return is_compiled ? left::kCompiled : left::kNoGradient;
  }
  if (comes_from_leaf(x)) return left::kOfLeaf;
  if (!form.empty()) return form;
  return saved_by == "checkpoint" ? left::kCheckpoint : Reason();
}

bool may_be_smaller(const at::Tensor& x, Reason why, std::int64_t min_elements) {
  const bool is_index = why == left::kType && x.scalar_type() == at::kLong;
  if (why != left::kNoGradient && why != left::kCompiled && !is_index) return false;
  return is_large(x, min_elements) && x.is_non_overlapping_and_dense();
}

bool is_copied(const at::Tensor& x, Reason why) {
  return why == left::kSmall && 2 * x.nbytes() < x.storage().nbytes();
}

bool is_logarithm(const at::Tensor& x) {
  const auto& node = x.grad_fn();
  return node != nullptr && node->name() == "LogSoftmaxBackward0";
}

bool is_cast_or_view(const torch::autograd::Node& node) {
  return std::ranges::count(kCastsAndViews, node.name()) > 0;
}

}  // namespace slimgrad::runtime
