// What users and Python see of torch/sparse/product_choice.h: the state by names.
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <string>
#include <tuple>
#include <vector>

#include <slimgrad/sparse_layers.h>

#include "base/check.h"
#include "torch/checks.h"
#include "torch/errors.h"
#include "torch/no_gradient.h"
#include "torch/sparse/product_choice.h"
#include "torch/sparse/products.h"

namespace slimgrad {
namespace {

using torch_ops::ProductChoice;

constexpr std::array kProducts{Product::kWeight, Product::kInput};
constexpr std::array<std::string_view, 3> kWayNames{"auto", "dense", "sparse"};
constexpr std::array<std::string_view, 4> kChosenByNames{"", "model", "tune", "user"};

}  // namespace

std::string_view sparse_way_name(SparseWay way) { return kWayNames[static_cast<std::size_t>(way)]; }

SparseWay parse_sparse_way(std::string_view name) {
  for (std::size_t i = 0; i < kWayNames.size(); ++i)
    if (name == kWayNames[i]) return static_cast<SparseWay>(i);
  throw_invalid("set_way", "way to be auto, dense or sparse", name);
}

std::string_view chosen_by_name(ChosenBy by) {
  return kChosenByNames[static_cast<std::size_t>(by)];
}

SparseLayerState SparseLayerState::from_list(at::TensorList list, std::string_view op) {
  check(list.size() == 5, op, "a state of five tensors", list.size());
  return {list[0], list[1], list[2], list[3], list[4]};
}

at::Tensor new_sparse_choice(bool always) {
  const at::Tensor choice = at::zeros({torch_ops::kChoiceSize}, at::kDouble);
  choice.mutable_data_ptr<double>()[torch_ops::kChoiceAlways] = always ? 1 : 0;
  return choice;
}

void set_sparse_ways(const at::Tensor& choice, std::optional<SparseWay> weight,
                     std::optional<SparseWay> input) {
  if (weight) ProductChoice(choice, Product::kWeight, "set_sparse_ways").pin(*weight);
  if (input) ProductChoice(choice, Product::kInput, "set_sparse_ways").pin(*input);
}

void time_sparse_ways(const at::Tensor& choice, bool on) {
  for (const Product product : kProducts) {
    ProductChoice one(choice, product, "time_sparse_ways");
    if (on)
      one.forget_trials();
    else
      one.pin_trials();
  }
  choice.mutable_data_ptr<double>()[torch_ops::kChoiceTiming] = on ? 1 : 0;
}

std::vector<std::string> load_sparse_choice(const at::Tensor& choice, const at::Tensor& saved) {
  constexpr const char* kOp = "load_sparse_choice";
  const at::Tensor here = torch_ops::saved_here(saved);
  for (const Product product : kProducts) {
    ProductChoice(choice, product, kOp);
    ProductChoice(here, product, kOp, "saved");
  }
  double* const ours = choice.mutable_data_ptr<double>();
  const double* const theirs = here.const_data_ptr<double>();
  // Timing goes on as long as this process asks for it; one that a state was saved in is over.
  std::copy(theirs + torch_ops::kChoiceProducts, theirs + torch_ops::kChoiceSize,
            ours + torch_ops::kChoiceProducts);
  const bool always = ours[torch_ops::kChoiceAlways] != 0;
  if (always == (theirs[torch_ops::kChoiceAlways] != 0)) return {};
  return {always ? "sparse_backward 'always', the state has True"
                 : "sparse_backward True, the state has 'always'"};
}

SparseReport sparse_report(const at::Tensor& choice) {
  constexpr const char* kOp = "sparse_report";
  return {ProductChoice(choice, Product::kWeight, kOp).report(),
          ProductChoice(choice, Product::kInput, kOp).report()};
}

BreakEven sparse_break_even(const at::Tensor& choice) {
  const SparseReport report = sparse_report(choice);
  return {report.weight.break_even, report.input.break_even};
}

namespace torch_ops {
namespace {

Product parse_product(std::string_view name, const char* op) {
  check(name == "weight" || name == "input", op, "product to be weight or input", name);
  return name == "weight" ? Product::kWeight : Product::kInput;
}

using CostTuple = std::tuple<std::vector<double>, std::vector<double>, std::vector<double>, double,
                             std::vector<double>>;

CostTuple sparse_cost_op(const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& weight,
                         at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                         std::int64_t groups, std::string_view product) {
  constexpr const char* kOp = "_sparse_cost";
  const LayerBackward layer(kOp, gradient, x, weight, {stride, padding, dilation, groups});
  const PricedProduct priced = layer.priced(parse_product(product, kOp));
  const CostTerms terms = cost_terms(priced);
  const ProductCost cost = predict_cost(priced);
  return {terms.dense,
          terms.compress,
          terms.multiply,
          terms.other,
          {cost.dense, cost.compress, cost.multiply}};
}

}  // namespace

TORCH_LIBRARY_IMPL(slimgrad, CompositeExplicitAutograd, m) {
  m.impl("new_sparse_choice", new_sparse_choice);
  m.impl("_sparse_cost", ValueErrors<&sparse_cost_op>::call);
}
TORCH_LIBRARY_IMPL(slimgrad, Autograd, m) { m.impl("_sparse_cost", no_gradient()); }

}  // namespace torch_ops
}  // namespace slimgrad
