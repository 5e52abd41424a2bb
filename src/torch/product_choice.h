// Sparse or dense? Decided for each product of each layer by measuring both in its first backward
// passes, on the machine, the threads and the shape that it has.
//
// A sparse product takes  compress + (1 - sparsity) * multiply,  where `compress` (planning,
// pruning, packing) does not depend on the sparsity and `multiply` is what all values would take.
// With the best of kTrials timings of each part and of the dense product, the break-even sparsity
// follows, and from then on the product is sparse where the gradient is sparser than that. The
// timings are kept in a tensor that the layer saves, so that a resumed run decides as the
// interrupted one did.
#ifndef SLIMGRAD_TORCH_PRODUCT_CHOICE_H_
#define SLIMGRAD_TORCH_PRODUCT_CHOICE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "codecs/sparse_backward.h"

namespace slimgrad::torch_ops {

enum class Product : std::int64_t { kWeight, kInput };

// What the user lets us choose.
enum class SparseMode : std::int64_t { kAuto, kAlways };

enum class Way : std::int64_t {
  kDense,
  kSparse,
  kBoth
};  // both: a trial, the sparse result counts

// The order is the layout; Python names the same fields (python/slimgrad/nn/layers.py).
enum ChoiceField : std::int64_t {
  kChoiceMode,
  kChoiceProducts,  // then for each product:
  kChoiceTrials = 0,
  kChoiceDense,     // best seconds
  kChoiceCompress,  // best seconds
  kChoiceMultiply,  // best seconds for all values
  kChoiceWay,       // what the last backward pass did
  kChoiceProductFields,
  kChoiceSize = kChoiceProducts + 2 * kChoiceProductFields,
};
inline constexpr int kTrials = 3;

class ProductChoice {
 public:
  // Throws InvalidArgument for a tensor of another type, size or layout.
  ProductChoice(const at::Tensor& choice, Product product, const char* op);

  Way way(double sparsity) const;
  // 1 if no sparsity pays; NaN before the trials.
  double break_even() const;

  // Whether a product of so few values says what more would take: if not, it was surely worth
  // doing sparsely, and is no trial.
  static bool is_telling(const SparseCounts& sparse) {
    return sparse.survivors * 1000 >= sparse.elements && sparse.survivors > 0;
  }
  // REQUIRES: is_telling(sparse).
  void add_trial(const SparseCounts& sparse, double dense_seconds);
  void set_way(Way way) { fields_[kChoiceWay] = static_cast<double>(way); }

 private:
  SparseMode mode_;
  double* fields_;
};

}  // namespace slimgrad::torch_ops

#endif  // SLIMGRAD_TORCH_PRODUCT_CHOICE_H_
