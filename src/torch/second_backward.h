// An approximate gradient cannot be differentiated: its own derivative is not kept. So a second
// backward is an error, and never a result that silently lacks a term. Ops with state refuse
// create_graph=True at once, before the pass is counted and written; ops without state refuse only
// the second backward itself, so that create_graph=True for other parts of a network does no harm.
#ifndef SLIMGRAD_TORCH_SECOND_BACKWARD_H_
#define SLIMGRAD_TORCH_SECOND_BACKWARD_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <utility>

#include "torch/make_node.h"

namespace slimgrad::torch_ops {

// Call it first in the backward of an op with state: gates and sparse layers.
inline void check_first_backward(const char* op) {
  TORCH_CHECK(!at::GradMode::is_enabled(), "[", op,
              "] expected a first backward pass, got create_graph=True: a compressed gradient has "
              "no derivative");
}

// Call it on the result of a few-bit activation's backward. With create_graph=True, and only then,
// gradient mode is on: the result is given a history that raises when it is used. Its edges, which
// are never followed, make whatever the activation's input and the incoming gradient depend on
// reachable: otherwise a request for their gradients would be answered with "unused".
inline void refuse_second_backward(at::Tensor& result, const at::Tensor& grad) {
  if (!at::GradMode::is_enabled() || !result.defined() || result.requires_grad()) return;
  torch::autograd::edge_list edges;
  if (grad.defined()) edges = torch::autograd::collect_next_edges(grad);
  if (const auto node = torch::autograd::get_current_node())
    edges.insert(edges.end(), node->next_edges().begin(), node->next_edges().end());
  auto error = make_node<torch::autograd::Error>(
      "[fewbit] expected at most one backward through a few-bit activation, got a second: the "
      "derivative of its approximate gradient is not kept",
      std::move(edges));
  torch::autograd::set_history(result, error);
}

}  // namespace slimgrad::torch_ops

#endif  // SLIMGRAD_TORCH_SECOND_BACKWARD_H_
