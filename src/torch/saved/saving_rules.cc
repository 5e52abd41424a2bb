#include "torch/saved/saving_rules.h"

#include <ATen/TensorSubclassLikeUtils.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "torch/checks.h"

namespace slimgrad::torch_ops {
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

bool is_logarithm(const at::Tensor& x) {
  const auto& node = x.grad_fn();
  return node != nullptr && node->name() == "LogSoftmaxBackward0";
}

}  // namespace

bool is_cast_or_view(const torch::autograd::Node& node) {
  return std::ranges::count(kCastsAndViews, node.name()) > 0;
}

Saving saving_of(const at::Tensor& x, std::int64_t min_elements) {
  if (x.is_leaf() && x.requires_grad()) return Saving::kLivesAnyway;
  if (x.layout() != at::kStrided || !x.device().is_cpu() || at::isTensorSubclassLike(x))
    return Saving::kLeft;
  const bool is_large = x.numel() >= std::max<std::int64_t>(min_elements, 1);
  const bool is_whole = x.is_non_overlapping_and_dense();
  if (!is_float_dtype(x.scalar_type()))
    return x.scalar_type() == at::kLong && is_large && is_whole ? Saving::kIndices : Saving::kLeft;
  if (torch::autograd::get_current_graph_task_id() != -1) return Saving::kLivesAnyway;
  if (x.is_leaf()) return is_large && is_whole ? Saving::kMask : Saving::kLeft;
  if (comes_from_leaf(x)) return Saving::kLivesAnyway;
  if (!is_large) return 2 * x.nbytes() < x.storage().nbytes() ? Saving::kCopied : Saving::kLeft;
  if (is_expanded(x)) return Saving::kLeft;
  return is_logarithm(x) ? Saving::kLogarithm : Saving::kPacked;
}

}  // namespace slimgrad::torch_ops
