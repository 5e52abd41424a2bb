// A node of the autograd graph. Up to torch 2.12 nodes are held by std::shared_ptr and freed by a
// function that does not recurse; since then they count their own references.
#ifndef SLIMGRAD_TORCH_MAKE_NODE_H_
#define SLIMGRAD_TORCH_MAKE_NODE_H_

#include <torch/csrc/autograd/function.h>
#include <torch/headeronly/version.h>

#include <memory>
#include <utility>

namespace slimgrad::torch_ops {

template <typename Node, typename... Args>
auto make_node(Args&&... args) {
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 13
  return std::shared_ptr<Node>(new Node(std::forward<Args>(args)...), torch::autograd::deleteNode);
#else
  return c10::make_intrusive<Node>(std::forward<Args>(args)...);
#endif
}

}  // namespace slimgrad::torch_ops

#endif  // SLIMGRAD_TORCH_MAKE_NODE_H_
