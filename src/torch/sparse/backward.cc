// sparse_linear_backward and sparse_conv2d_backward: choose a way, bring the gradient to the gate
// (arrays/decide/gate_pass.h), multiply what is left; for each of the two products by itself. All
// state is in the layer's tensors (torch/decide/plan_tensor.h, torch/sparse/product_choice.h).
//
// A product that is done densely is exact: pruning it would cost time and gain none. But on a
// device, where nothing is multiplied sparsely, the gradient is pruned as it was asked for, and
// then multiplied.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <vector>

#include <slimgrad/sparse_layers.h>

#include "arrays/decide/gate_pass.h"
#include "base/check.h"
#include "base/stopwatch.h"
#include "torch/checks.h"
#include "torch/decide/gradient_backend.h"
#include "torch/decide/plan_tensor.h"
#include "torch/decide/state_place.h"
#include "torch/device/launcher.h"
#include "torch/errors.h"
#include "torch/find_op.h"
#include "torch/no_gradient.h"
#include "torch/sparse/product_choice.h"
#include "torch/sparse/products.h"

namespace slimgrad::torch_ops {
namespace {

// One product in one backward pass.
class GatedProduct : public GradientValues {
 public:
  GatedProduct(Product product, const SparseLayerState& state, LayerBackward& layer,
               std::int64_t stream, const char* op)
      : product_(product),
        layer_(layer),
        pass_(product == Product::kWeight ? state.weight_plan : state.input_plan,
              product == Product::kWeight ? state.weight_stats : state.input_stats,
              layer.num_elements(), layer.type(), stream, op,
              product == Product::kWeight ? "weight_" : "input_"),
        choice_(state.choice, product, op) {
    check_product_settings(pass_.settings(), op);
  }

  // Known before it runs, unless it is timed.
  bool is_dense() { return !choice_.is_timing() && way() == Way::kDense; }

  // `sparse(draw, counts)` and `dense()` return the same kind of gradients.
  template <typename Sparse, typename Dense>
  auto run(const Sparse& sparse, const Dense& dense) {
    if (choice_.is_timing()) layer_.forget_order();
    Stopwatch watch;
    const Way way = this->way();
    std::optional<decltype(dense())> result;
    if (way == Way::kDense) {
      result = dense();
    } else {
      SparseCounts counts;
      result = sparse(draw(), counts);
      const double seconds = watch.lap();
      pass_->multiplied(static_cast<std::uint64_t>(counts.survivors));
      if (way == Way::kBoth && ProductChoice::is_telling(counts)) {
        // The sample, the threshold and copies to another layout do not shrink, either.
        counts.compress_seconds = std::max(0.0, seconds - counts.multiply_seconds);
        watch.lap();
        dense();
        const double dense_seconds = watch.lap();
        const auto lock = lock_plans();
        choice_.add_trial(counts, dense_seconds);
      }
    }
    close(way);
    return *result;
  }

 private:
  bool prunes() const { return pass_->sparsity() > 0; }

  // A product in warm-up may be timed: that changes nothing.
  bool can_be_sparse() const {
    return layer_.can_be_sparse() && pass_->is_open(choice_.is_timing()) &&
           (pass_.settings().prune == PruneKind::kNone || prunes());
  }

  Way way() {
    if (!way_) way_ = choose();
    return *way_;
  }

  Way choose() {
    if (!can_be_sparse() || choice_.setting() == SparseWay::kDense) return Way::kDense;
    if (!prunes()) zero_fraction_ = pass_->zero_fraction(*this);
    const auto lock = lock_plans();
    if (choice_.is_open()) choice_.decide(predict_cost(layer_.priced(product_)), ChosenBy::kModel);
    return choice_.way(prunes() ? pass_->sparsity() : zero_fraction_);
  }

  PruneDraw draw() {
    if (!prunes()) return {.treatment = {}, .density = 1 - zero_fraction_};
    return {.treatment = pass_->prune(*this), .density = 1 - pass_->sparsity()};
  }

  void gather(const kernels::StratifiedSample& sample, std::uint64_t every,
              std::vector<float>& out) override {
    kCpuBackend.gather(layer_.gradient(), sample, every, out);
  }

  void close(Way way) {
    pass_.close();
    const auto lock = lock_plans();
    choice_.set_last(way);
  }

  Product product_;
  LayerBackward& layer_;
  TensorPass pass_;
  ProductChoice choice_;
  std::optional<Way> way_;
  double zero_fraction_ = 0;
};

using Gradients = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

// The gradient of a layer on a device as a product is to see it; nothing where it is not to be
// pruned.
std::optional<at::Tensor> pruned_on_device(Product product, const SparseLayerState& state,
                                           LayerBackward& layer, std::int64_t stream,
                                           const char* op) {
  const at::Tensor& gradient = layer.gradient();
  ProductChoice choice(state.choice, product, op);
  if (choice.is_timing()) return std::nullopt;
  const bool is_weight = product == Product::kWeight;
  const at::Tensor& plan = is_weight ? state.weight_plan : state.input_plan;
  const at::Tensor& stats = is_weight ? state.weight_stats : state.input_stats;
  if (choice.setting() == SparseWay::kDense) {  // exact: the host counts the pass
    bring_state_to(c10::kCPU, plan, stats, op);
    return std::nullopt;
  }
  bring_state(gradient, plan, stats, op);
  if (!is_on_device(plan) &&
      !(read_plan(plan, op).options.settings.sparsity > 0))  // for a method of the host alone
    return std::nullopt;
  static const auto compress =
      find_op<at::Tensor(const at::Tensor&, at::Tensor, at::Tensor, std::int64_t)>(
          "slimgrad::compress_gradient");
  at::Tensor pruned = compress.call(gradient, plan, stats, stream);
  const auto lock = lock_plans();
  choice.set_last(Way::kDense);
  return pruned;
}

// What was not asked for is an empty tensor: an op returns tensors, not nothing.
at::Tensor nothing(const at::Tensor& like) { return at::empty({0}, like.options()); }

// `same(gradient)` is the layer with another gradient.
template <typename Same>
Gradients layer_backward(const char* op, LayerBackward& layer, const at::Tensor& like,
                         std::array<bool, 3> wanted, const SparseLayerState& state,
                         std::int64_t stream, const Same& same) {
  Gradients result{nothing(like), nothing(like), nothing(like)};
  auto& [dx, dw, bias] = result;
  const bool has_kernels = has_device_kernels(like.device().type());
  if (has_kernels && wanted[0])
    if (const auto pruned = pruned_on_device(Product::kInput, state, layer, stream, op)) {
      dx = same(*pruned).dense_input_gradient();
      wanted[0] = false;
    }
  if (has_kernels && wanted[1])
    if (const auto pruned = pruned_on_device(Product::kWeight, state, layer, stream, op)) {
      const auto gradients = same(*pruned).dense_weight_gradient(wanted[2]);
      dw = gradients.weight;
      if (wanted[2]) bias = gradients.bias;
      wanted[1] = wanted[2] = false;
    }
  std::optional<GatedProduct> input, weight;
  if (wanted[0]) input.emplace(Product::kInput, state, layer, stream, op);
  if (wanted[1]) weight.emplace(Product::kWeight, state, layer, stream, op);
  if (input && weight && input->is_dense() && weight->is_dense()) layer.expect_dense(wanted);
  if (input)
    dx = input->run([&](const PruneDraw& draw,
                        SparseCounts& counts) { return layer.sparse_input_gradient(draw, counts); },
                    [&] { return layer.dense_input_gradient(); });
  if (weight) {
    const auto gradients = weight->run(
        [&](const PruneDraw& draw, SparseCounts& counts) {
          return layer.sparse_weight_gradient(draw, wanted[2], counts);
        },
        [&] { return layer.dense_weight_gradient(wanted[2]); });
    dw = gradients.weight;
    if (wanted[2]) bias = gradients.bias;
  } else if (wanted[2]) {
    bias = layer.bias_gradient();
  }
  return result;
}

// Conv: nothing, or stride, padding, dilation and groups.
template <typename... Conv>
struct BackwardKernels {
  static constexpr const char* kOp =
      sizeof...(Conv) == 0 ? "sparse_linear_backward" : "sparse_conv2d_backward";

  static Gradients run(const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& weight,
                       Conv... conv, std::array<bool, 3> wanted, at::TensorList state,
                       std::int64_t stream) {
    const ConvArguments arguments(conv...);
    const auto layer_with = [&](const at::Tensor& g) {
      return LayerBackward(kOp, g, x, weight, arguments);
    };
    LayerBackward layer = layer_with(gradient);
    return layer_backward(kOp, layer, x, wanted, SparseLayerState::from_list(state, kOp), stream,
                          layer_with);
  }

  static Gradients meta(const at::Tensor&, const at::Tensor& x, const at::Tensor& weight, Conv...,
                        std::array<bool, 3> wanted, at::TensorList tensors, std::int64_t) {
    const SparseLayerState state = SparseLayerState::from_list(tensors, kOp);
    check_meta_state(x, state.weight_plan, plan_size(), kOp, "weight_plan");
    check_meta_state(x, state.weight_stats, layer_stats_size(), kOp, "weight_stats");
    check_meta_state(x, state.input_plan, plan_size(), kOp, "input_plan");
    check_meta_state(x, state.input_stats, layer_stats_size(), kOp, "input_stats");
    check_meta_state(x, state.choice, kChoiceSize, kOp, "choice");
    return {wanted[0] ? at::empty_symint(x.sym_sizes(), x.options(), x.suggest_memory_format())
                      : nothing(x),
            wanted[1] ? at::empty_like(weight) : nothing(x),
            wanted[2] ? at::empty_symint({weight.sym_size(0)}, weight.options()) : nothing(x)};
  }
};
using LinearBackward = BackwardKernels<>;
using Conv2dBackward =
    BackwardKernels<at::IntArrayRef, at::IntArrayRef, at::IntArrayRef, std::int64_t>;

}  // namespace

TORCH_LIBRARY_IMPL(slimgrad, CompositeExplicitAutograd, m) {
  m.impl("sparse_linear_backward", ValueErrors<&LinearBackward::run>::call);
  m.impl("sparse_conv2d_backward", ValueErrors<&Conv2dBackward::run>::call);
}
TORCH_LIBRARY_IMPL(slimgrad, Autograd, m) {
  m.impl("sparse_linear_backward", no_gradient());
  m.impl("sparse_conv2d_backward", no_gradient());
}
TORCH_LIBRARY_IMPL(slimgrad, Meta, m) {
  m.impl("sparse_linear_backward", ValueErrors<&LinearBackward::meta>::call);
  m.impl("sparse_conv2d_backward", ValueErrors<&Conv2dBackward::meta>::call);
}

}  // namespace slimgrad::torch_ops
