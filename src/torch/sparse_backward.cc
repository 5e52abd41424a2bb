// sparse_linear_backward and sparse_conv2d_backward: plan, choose, multiply, report; for each of
// the two products by itself. All state is in the layer's tensors (torch/plan_tensor.h,
// torch/product_choice.h).
//
// A product that is done densely is exact: pruning it would cost time and gain none.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <vector>

#include <slimgrad/pruning.h>

#include "base/check.h"
#include "base/hash.h"
#include "torch/checks.h"
#include "torch/errors.h"
#include "torch/gradient_backend.h"
#include "torch/no_gradient.h"
#include "torch/plan_tensor.h"
#include "torch/product_choice.h"
#include "torch/sparse_products.h"

namespace slimgrad::torch_ops {
namespace {

struct ProductState {
  Product product;
  const at::Tensor& plan;
  const at::Tensor& stats;
};

// One product in one backward pass.
class PlannedProduct {
 public:
  PlannedProduct(const ProductState& state, const at::Tensor& choice, LayerBackward& layer,
                 std::int64_t stream, const char* op)
      : tensors_(state),
        layer_(layer),
        state_(read_plan(state.plan)),
        choice_(choice, state.product, op) {
    check_layer_stats(state.stats, op);
    const PruneKind kind = state_.options.settings.prune;
    check(kind == PruneKind::kNone || kind == PruneKind::kStochastic, op,
          "a plan that prunes stochastically or not at all", prune_kind_name(kind));
    check(state_.options.settings.bits == 0, op, "a plan that does not quantize",
          state_.options.settings.bits, " bits");
    draw_ = mix_bits(state_.options.seed ^ mix_bits(static_cast<std::uint64_t>(state_.calls) ^
                                                    mix_bits(static_cast<std::uint64_t>(stream))));
  }

  // `product(draw, counts)` is the sparse one; both return the same kind of gradients.
  template <typename Sparse, typename Dense>
  auto run(const Sparse& sparse, const Dense& dense) {
    if (choice_.is_timing()) layer_.forget_order();
    Stopwatch watch;
    const Way way = choose();
    GateReport report;
    report.elements = layer_.num_elements();
    report.sparsity_wanted = prunes() ? state_.options.settings.sparsity : 0;
    std::optional<decltype(dense())> result;
    if (way == Way::kDense) {
      report.sparsity = sample_zero_fraction_;
      result = dense();
    } else {
      const double zeros = prunes() ? state_.options.settings.sparsity : sample_zero_fraction_;
      PruneDraw draw{.threshold = 0, .seed = draw_, .density = 1 - zeros};
      if (prunes()) draw.threshold = plan_threshold(report);
      SparseCounts counts;
      result = sparse(draw, counts);
      const double seconds = watch.lap();
      report.compressed = true;
      report.sparsity =
          1 - static_cast<double>(counts.survivors) / static_cast<double>(counts.elements);
      if (way == Way::kBoth && ProductChoice::is_telling(counts)) {
        // The sample, the threshold and copies to another layout do not shrink, either.
        counts.compress_seconds = std::max(0.0, seconds - counts.multiply_seconds);
        watch.lap();
        dense();
        choice_.add_trial(counts, watch.lap());
      }
    }
    choice_.set_last(way);
    finish(report);
    return *result;
  }

 private:
  bool prunes() const {
    return state_.options.settings.prune != PruneKind::kNone &&
           state_.options.settings.sparsity > 0;
  }

  // A product in warm-up may be timed: that changes nothing.
  bool can_be_sparse() const {
    const GateOptions& options = state_.options;
    return layer_.can_be_sparse() && layer_.num_elements() >= options.min_elements &&
           (state_.calls >= options.warmup || choice_.is_timing()) &&
           (options.settings.prune == PruneKind::kNone || prunes());
  }

  Way choose() {
    if (!can_be_sparse() || choice_.setting() == SparseWay::kDense) return Way::kDense;
    if (choice_.is_open()) choice_.decide(predict_cost(layer_.priced(tensors_.product)));
    if (prunes()) return choice_.way(state_.options.settings.sparsity);
    // Used as it is: a small sample says how sparse.
    constexpr std::uint64_t kZeroSample = 4096;
    const TensorStats stats = sample(kZeroSample);
    sample_zero_fraction_ = stats.zero_fraction;
    return choice_.way(stats.zero_fraction);
  }

  TensorStats sample(std::uint64_t size) const {
    static thread_local std::vector<float> values;
    const at::Tensor& gradient = layer_.gradient();
    const StratifiedSample positions(static_cast<std::uint64_t>(gradient.numel()), size, draw_);
    kCpuBackend.gather(gradient, positions, 1, values);
    return measure_sample(values, static_cast<std::uint64_t>(gradient.numel()));
  }

  double plan_threshold(GateReport& report) {
    const GateOptions& options = state_.options;
    const TensorStats stats = sample(static_cast<std::uint64_t>(options.sample_size));
    sampled_ = stats;
    if (stats.num_finite() == 0) return 0;
    const bool fresh =
        state_.due || (options.refresh_every > 0 && state_.calls % options.refresh_every == 0);
    if (fresh) state_.in_force = plan_gradient(stats, options.settings);
    state_.due = false;
    const double threshold = fresh ? state_.in_force.threshold
                                   : guard_plan(state_.in_force, stats, options.settings).threshold;
    // Expectations over the draw, from the sample: |T - x| / |x| is 2 (1 - |x| / threshold) on
    // average for a value below the threshold, so its mean follows from the zeros that are made.
    if (threshold > 0 && stats.zero_fraction < 1) {
      report.cosine = expected_cosine(stats, threshold, ThresholdMethod::kEmpirical);
      report.relative_error =
          2 *
          (expected_sparsity(stats, threshold, ThresholdMethod::kEmpirical) - stats.zero_fraction) /
          (1 - stats.zero_fraction);
    }
    report.nonfinite = static_cast<std::int64_t>(stats.nonfinite);
    return threshold;
  }

  void finish(const GateReport& report) {
    ++state_.calls;
    write_plan(state_, tensors_.plan);
    // A product that was done densely was not sampled. What it looked like before stays, so that an
    // allocation over all layers still counts it and can give it enough sparsity to be sparse
    // again.
    if (sampled_.count > 0) write_stats(sampled_, tensors_.stats.mutable_data_ptr<double>());
    write_report(report, tensors_.stats);
  }

  ProductState tensors_;
  LayerBackward& layer_;
  PlanState state_;
  ProductChoice choice_;
  std::uint64_t draw_;
  double sample_zero_fraction_ = 0;
  TensorStats sampled_;
};

using Gradients = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

// What was not asked for is an empty tensor: an op returns tensors, not nothing.
at::Tensor nothing(const at::Tensor& like) { return at::empty({0}, like.options()); }

Gradients layer_backward(const char* op, LayerBackward& layer, const at::Tensor& like,
                         std::array<bool, 3> wanted, const ProductState& weight,
                         const ProductState& input, const at::Tensor& choice, std::int64_t stream) {
  Gradients result{nothing(like), nothing(like), nothing(like)};
  auto& [dx, dw, bias] = result;
  if (wanted[0]) {
    dx = PlannedProduct(input, choice, layer, stream, op)
             .run([&](const PruneDraw& draw,
                      SparseCounts& counts) { return layer.sparse_input_gradient(draw, counts); },
                  [&] { return layer.dense_input_gradient(); });
  }
  if (wanted[1]) {
    const auto gradients = PlannedProduct(weight, choice, layer, stream, op)
                               .run(
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

Gradients sparse_linear_backward(const at::Tensor& gradient, const at::Tensor& x,
                                 const at::Tensor& weight, std::array<bool, 3> wanted,
                                 at::Tensor weight_plan, at::Tensor weight_stats,
                                 at::Tensor input_plan, at::Tensor input_stats, at::Tensor choice,
                                 std::int64_t stream) {
  constexpr const char* kOp = "sparse_linear_backward";
  LayerBackward layer(kOp, gradient, x, weight, {});
  return layer_backward(kOp, layer, x, wanted, {Product::kWeight, weight_plan, weight_stats},
                        {Product::kInput, input_plan, input_stats}, choice, stream);
}

Gradients sparse_conv2d_backward(const at::Tensor& gradient, const at::Tensor& x,
                                 const at::Tensor& weight, at::IntArrayRef stride,
                                 at::IntArrayRef padding, at::IntArrayRef dilation,
                                 std::int64_t groups, std::array<bool, 3> wanted,
                                 at::Tensor weight_plan, at::Tensor weight_stats,
                                 at::Tensor input_plan, at::Tensor input_stats, at::Tensor choice,
                                 std::int64_t stream) {
  constexpr const char* kOp = "sparse_conv2d_backward";
  LayerBackward layer(kOp, gradient, x, weight,
                      {stride.vec(), padding.vec(), dilation.vec(), groups});
  return layer_backward(kOp, layer, x, wanted, {Product::kWeight, weight_plan, weight_stats},
                        {Product::kInput, input_plan, input_stats}, choice, stream);
}

Gradients gradients_meta(const at::Tensor& x, const at::Tensor& weight,
                         std::array<bool, 3> wanted) {
  return {wanted[0] ? at::empty_symint(x.sym_sizes(), x.options(), x.suggest_memory_format())
                    : nothing(x),
          wanted[1] ? at::empty_like(weight) : nothing(x),
          wanted[2] ? at::empty_symint({weight.sym_size(0)}, weight.options()) : nothing(x)};
}

Gradients linear_meta(const at::Tensor&, const at::Tensor& x, const at::Tensor& weight,
                      std::array<bool, 3> wanted, at::Tensor, at::Tensor, at::Tensor, at::Tensor,
                      at::Tensor, std::int64_t) {
  return gradients_meta(x, weight, wanted);
}
Gradients conv2d_meta(const at::Tensor&, const at::Tensor& x, const at::Tensor& weight,
                      at::IntArrayRef, at::IntArrayRef, at::IntArrayRef, std::int64_t,
                      std::array<bool, 3> wanted, at::Tensor, at::Tensor, at::Tensor, at::Tensor,
                      at::Tensor, std::int64_t) {
  return gradients_meta(x, weight, wanted);
}

}  // namespace

TORCH_LIBRARY_IMPL(slimgrad, CompositeExplicitAutograd, m) {
  m.impl("sparse_linear_backward", ValueErrors<&sparse_linear_backward>::call);
  m.impl("sparse_conv2d_backward", ValueErrors<&sparse_conv2d_backward>::call);
}
TORCH_LIBRARY_IMPL(slimgrad, Autograd, m) {
  m.impl("sparse_linear_backward", no_gradient());
  m.impl("sparse_conv2d_backward", no_gradient());
}
TORCH_LIBRARY_IMPL(slimgrad, Meta, m) {
  m.impl("sparse_linear_backward", linear_meta);
  m.impl("sparse_conv2d_backward", conv2d_meta);
}

}  // namespace slimgrad::torch_ops
