#include "torch/product_choice.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace slimgrad::torch_ops {

ProductChoice::ProductChoice(const at::Tensor& choice, Product product, const char* op) {
  check(choice.defined() && choice.device().is_cpu() && choice.scalar_type() == at::kDouble &&
            choice.is_contiguous() && choice.numel() == kChoiceSize,
        op, "the buffer choice as a contiguous float64 CPU tensor of 11 elements", "a tensor of ",
        choice.numel(), " elements of type ", choice.scalar_type());
  double* const values = choice.mutable_data_ptr<double>();
  check(values[kChoiceMode] == 0 || values[kChoiceMode] == 1, op, "a mode of 0 or 1 in choice",
        values[kChoiceMode]);
  mode_ = static_cast<SparseMode>(static_cast<std::int64_t>(values[kChoiceMode]));
  fields_ = values + kChoiceProducts +
            static_cast<std::int64_t>(product) * static_cast<std::int64_t>(kChoiceProductFields);
}

double ProductChoice::break_even() const {
  if (fields_[kChoiceTrials] < kTrials) return std::numeric_limits<double>::quiet_NaN();
  const double spare = fields_[kChoiceDense] - fields_[kChoiceCompress];
  if (spare <= 0) return 1;
  return std::clamp(1 - spare / fields_[kChoiceMultiply], 0.0, 1.0);
}

Way ProductChoice::way(double sparsity) const {
  // A gradient with few zeros cannot gain much, and is not worth timing.
  constexpr double kWorthATrial = 0.3;
  if (mode_ == SparseMode::kAlways) return Way::kSparse;
  if (fields_[kChoiceTrials] < kTrials) return sparsity >= kWorthATrial ? Way::kBoth : Way::kDense;
  return sparsity >= break_even() ? Way::kSparse : Way::kDense;
}

void ProductChoice::add_trial(const SparseCounts& sparse, double dense_seconds) {
  const double share = static_cast<double>(sparse.survivors) / static_cast<double>(sparse.elements);
  const auto keep_best = [&](ChoiceField field, double seconds) {
    const bool first = fields_[kChoiceTrials] == 0;
    fields_[field] = first ? seconds : std::min(fields_[field], seconds);
  };
  keep_best(kChoiceDense, dense_seconds);
  keep_best(kChoiceCompress, sparse.compress_seconds);
  keep_best(kChoiceMultiply, sparse.multiply_seconds / share);
  ++fields_[kChoiceTrials];
}

}  // namespace slimgrad::torch_ops
