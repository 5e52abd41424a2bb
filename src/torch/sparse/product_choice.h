// Sparse or dense? What a layer's state says of it, for each of its two products.
//
// A product is done sparsely where its gradient is at least as sparse as its break-even sparsity.
// That is found once, in the first backward pass in which the product could be sparse, from the
// shape, layout and type of the tensors and the constants of arrays/sparse/cost.h, never from a
// clock or the number of threads, and is state from then on: another batch size does not change
// it, and a resumed run does as the interrupted one did. Timing by the clock is switched on for
// some backward passes; both ways then run, and the break-even follows from their best times. And
// the user may set a way by hand.
#ifndef SLIMGRAD_TORCH_SPARSE_PRODUCT_CHOICE_H_
#define SLIMGRAD_TORCH_SPARSE_PRODUCT_CHOICE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

#include <slimgrad/sparse_layers.h>

#include "arrays/sparse/backward.h"
#include "arrays/sparse/cost.h"

namespace slimgrad::torch_ops {

// What a backward pass does. Both: to time them; the sparse result counts.
enum class Way : std::int64_t { kDense, kSparse, kBoth };

// The order is the layout of the tensor; no other file knows it.
enum ChoiceField : std::int64_t {
  kChoiceAlways,    // what the user wants, 1: sparse even where dense is faster. The rest is state:
  kChoiceTiming,    // 1: backward passes time both ways
  kChoiceProducts,  // then for each product:
  kChoicePinned = 0,  // 1 + SparseWay that was set by hand; 0: none was, and `always` says
  kChoiceBy,          // ChosenBy, of the break-even: none, model or timing
  kChoiceBreakEven,
  kChoiceLast,      // 1: the last backward pass, timed ones apart, was sparse
  kChoiceTrials,    // of the timing; then its best seconds:
  kChoiceDense,     // all of it
  kChoiceCompress,  // what does not shrink with the survivors
  kChoiceMultiply,  // for all values
  kChoiceProductFields,
  kChoiceSize = kChoiceProducts + 2 * kChoiceProductFields,
};

class ProductChoice {
 public:
  // Throws InvalidArgument, in the name of `op`, for a tensor, which the error calls `name`, of
  // another type, size, device or layout, and for values that are never written.
  ProductChoice(const at::Tensor& choice, Product product, const char* op,
                const char* name = "choice");

  // The way that is pinned, or else that of the user's setting.
  SparseWay setting() const {
    if (field(kChoicePinned) > 0) return static_cast<SparseWay>(field(kChoicePinned) - 1);
    return *always_ != 0 ? SparseWay::kSparse : SparseWay::kAuto;
  }
  void pin(SparseWay way) { fields_[kChoicePinned] = static_cast<double>(way) + 1; }

  // Whether a break-even is wanted before way() can be asked.
  bool is_open() const {
    return setting() == SparseWay::kAuto && field(kChoiceBy) == std::int64_t{0};
  }
  // A break-even, from the costs that `by` gives.
  void decide(const ProductCost& cost, ChosenBy by);
  // REQUIRES: not is_open().
  Way way(double sparsity) const;
  // What a backward pass did; one that timed both ways is no part of the training.
  void set_last(Way way) {
    if (way != Way::kBoth) fields_[kChoiceLast] = way == Way::kSparse ? 1 : 0;
  }

  bool is_timing() const { return *timing_ != 0 && setting() == SparseWay::kAuto; }
  void forget_trials();
  // Whether a product of so few values says what more would take.
  static bool is_telling(const SparseCounts& sparse) {
    return sparse.survivors * 1000 >= sparse.elements && sparse.survivors > 0;
  }
  // REQUIRES: is_telling(sparse).
  void add_trial(const SparseCounts& sparse, double dense_seconds);
  // What the trials say, if there were any.
  void pin_trials();

  SparseProductReport report() const;

 private:
  std::int64_t field(ChoiceField field) const { return static_cast<std::int64_t>(fields_[field]); }
  ProductCost best_times() const {
    return {fields_[kChoiceDense], fields_[kChoiceCompress], fields_[kChoiceMultiply]};
  }

  const double *always_, *timing_;
  double* fields_;
};

// Throw InvalidArgument, in the name of `op`: for what no sparse product does, and, before a
// forward pass with x, for tensors that are no state of a layer (check_gate() of
// torch/decide/plan_tensor.h).
void check_product_settings(const GradientSettings& settings, const char* op);
void check_layer_state(const at::Tensor& x, const SparseLayerState& state, const char* op);

}  // namespace slimgrad::torch_ops

#endif  // SLIMGRAD_TORCH_SPARSE_PRODUCT_CHOICE_H_
