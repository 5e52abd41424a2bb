#include "runtime/compress/products.h"

#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/generated/Functions.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "runtime/saved/saving_rules.h"

namespace slimgrad::gating {
namespace {

using torch::autograd::Edge;
using torch::autograd::Node;

// Nodes of products, and which of their operands is a layer's weight.
constexpr std::array<std::pair<std::string_view, std::size_t>, 4> kWeightOperands = {
    {{"AddmmBackward0", 2},
     {"MmBackward0", 1},
     {"ConvolutionBackward0", 1},
     {"LinearBackward0", 1}}};
// What torch puts behind a product to give the result its shape. None of them is what a user's
// view() records.
constexpr std::array<std::string_view, 3> kShapes = {"UnsafeViewBackward0", "SqueezeBackward1",
                                                     "SqueezeBackward0"};
constexpr std::string_view kAdd = "AddBackward0";
constexpr std::array<std::string_view, 2> kSplits = {"SplitBackward0", "SplitWithSizesBackward0"};

// A parameter that an operand is, through casts and views alone: what is computed from a parameter
// in another way, as the rows of an embedding are, is no weight.
struct Operand {
  const c10::TensorImpl* parameter = nullptr;
  std::int64_t first_row = 0;
};

Operand operand_at(const Edge& edge) {
  Operand operand;
  for (const Node* node = edge.function.get(); node != nullptr;
       node = node->next_edge(0).function.get()) {
    if (const auto* leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(node)) {
      operand.parameter = leaf->variable.unsafeGetTensorImpl();
      return operand;
    }
    if (!runtime::is_cast_or_view(*node)) break;
    const auto* slice = dynamic_cast<const torch::autograd::generated::SliceBackward0*>(node);
    if (slice != nullptr && slice->dim == 0 && slice->start)
      operand.first_row += slice->start->guard_int(__FILE__, __LINE__);
  }
  return {};
}

class Search {
 public:
  explicit Search(const std::vector<WeightAndBias>& layers) : layers_(layers) {
    for (std::size_t i = 0; i < layers.size(); ++i)
      by_weight_.emplace(layers[i].weight.unsafeGetTensorImpl(), i);
  }

  void walk(at::TensorList roots) {
    std::vector<Node*> open;
    std::unordered_set<const Node*> seen;
    const auto add = [&](Node* node) {
      if (node != nullptr && seen.insert(node).second) open.push_back(node);
    };
    for (const at::Tensor& root : roots) add(root.grad_fn().get());
    while (!open.empty()) {
      Node* const node = open.back();
      open.pop_back();
      sort(*node);
      for (const Edge& edge : node->next_edges()) add(edge.function.get());
    }
  }

  // A layer is a product, perhaps a shape, and perhaps the sum with the bias: the gate belongs on
  // the last one, or the gradient of the bias would be another than that of the output.
  std::vector<ProductNode> outermost() {
    for (Node* shape : shapes_) climb(*shape, 0);
    for (Node* sum : sums_)
      for (const std::size_t bias : {1, 0})
        if (is_bias_of(sum->next_edge(1 - bias), sum->next_edge(bias)) && climb(*sum, 1 - bias))
          break;
    std::unordered_map<Node*, Node*> splits;  // by what is split
    for (Node* split : splits_) splits[split->next_edge(0).function.get()] = split;
    std::vector<ProductNode> products;
    for (const auto& [node, product] : found_) {
      const WeightAndBias& layer = layers_[product.layer];
      const std::int64_t num_rows = layer.weight.size(0) / layer.num_parts;
      const auto first = static_cast<std::size_t>(product.first_row / num_rows);
      if (layer.num_parts == 1 || node->input_metadata(0).shape_as_dim_vector().back() == num_rows)
        products.push_back({node, product.layer, layer.num_parts == 1 ? 0 : first});
      else if (const auto split = splits.find(node);
               split != splits.end() &&
               split->second->input_metadata(0).shape_as_dim_vector().back() == num_rows)
        products.push_back({split->second, product.layer, first});
    }
    return products;
  }

 private:
  struct Product {
    std::size_t layer;
    std::int64_t first_row;
  };

  void sort(Node& node) {
    const std::string name = node.name();
    if (name == kAdd && node.num_outputs() == 2) sums_.push_back(&node);
    if (std::ranges::count(kShapes, name) > 0) shapes_.push_back(&node);
    if (std::ranges::count(kSplits, name) > 0) splits_.push_back(&node);
    for (const auto& [product, operand] : kWeightOperands) {
      if (name != product || node.num_outputs() <= operand) continue;
      const Operand weight = operand_at(node.next_edge(operand));
      const auto layer = by_weight_.find(weight.parameter);
      if (layer != by_weight_.end()) found_[&node] = {layer->second, weight.first_row};
    }
  }

  bool is_bias_of(const Edge& product, const Edge& bias) const {
    const auto found = found_.find(product.function.get());
    if (found == found_.end()) return false;
    const at::Tensor& own = layers_[found->second.layer].bias;
    return own.defined() && operand_at(bias).parameter == own.unsafeGetTensorImpl();
  }

  // From a product to `node`, if it is the operand of that.
  bool climb(Node& node, std::size_t operand) {
    const auto found = found_.find(node.next_edge(operand).function.get());
    if (found == found_.end()) return false;
    const Product product = found->second;
    found_.erase(found);
    found_[&node] = product;
    return true;
  }

  const std::vector<WeightAndBias>& layers_;
  std::unordered_map<const c10::TensorImpl*, std::size_t> by_weight_;
  std::unordered_map<Node*, Product> found_;
  std::vector<Node*> shapes_, sums_, splits_;
};

}  // namespace

std::vector<ProductNode> find_products(at::TensorList roots,
                                       const std::vector<WeightAndBias>& layers) {
  Search search(layers);
  search.walk(roots);
  return search.outermost();
}

}  // namespace slimgrad::gating
