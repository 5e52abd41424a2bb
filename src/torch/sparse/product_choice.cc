#include "torch/sparse/product_choice.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "base/check.h"
#include "torch/checks.h"
#include "torch/decide/plan_tensor.h"
#include "torch/decide/state_place.h"

namespace slimgrad::torch_ops {
namespace {

bool is_one_of(double value, std::int64_t count) {
  return value >= 0 && value < static_cast<double>(count) && value == std::floor(value);
}

// Checks the fields of one product; the error names the first value that is never written.
void check_fields(const double* fields, const char* op, const char* name) {
  constexpr std::int64_t kManyTrials = std::int64_t{1} << 40;
  const auto check_value = [&](ChoiceField field, const char* expected, bool holds) {
    if (!holds) throw_invalid(op, std::string("in ") + name + " " + expected, fields[field]);
  };
  check_value(kChoicePinned, "a way from 0 to 3", is_one_of(fields[kChoicePinned], 4));
  check_value(kChoiceBy, "a decision by 0, 1 or 2", is_one_of(fields[kChoiceBy], 3));
  check_value(kChoiceBreakEven, "a break-even sparsity from 0 to 1",
              fields[kChoiceBreakEven] >= 0 && fields[kChoiceBreakEven] <= 1);
  check_value(kChoiceLast, "a last way of 0 or 1", is_one_of(fields[kChoiceLast], 2));
  check_value(kChoiceTrials, "a number of trials", is_one_of(fields[kChoiceTrials], kManyTrials));
  for (const ChoiceField seconds : {kChoiceDense, kChoiceCompress, kChoiceMultiply})
    check_value(seconds, "seconds", fields[seconds] >= 0 && std::isfinite(fields[seconds]));
}

}  // namespace

ProductChoice::ProductChoice(const at::Tensor& choice, Product product, const char* op,
                             const char* name) {
  check_state(choice, kChoiceSize, op, name);
  const auto lock = lock_plans();
  double* const values = choice.mutable_data_ptr<double>();
  for (const ChoiceField field : {kChoiceAlways, kChoiceTiming})
    if (!is_one_of(values[field], 2))
      throw_invalid(op,
                    std::string("in ") + name + (field == kChoiceAlways ? " always" : " timing") +
                        " to be 0 or 1",
                    values[field]);
  always_ = values + kChoiceAlways;
  timing_ = values + kChoiceTiming;
  fields_ = values + kChoiceProducts +
            static_cast<std::int64_t>(product) * static_cast<std::int64_t>(kChoiceProductFields);
  check_fields(fields_, op, name);
}

void ProductChoice::decide(const ProductCost& cost, ChosenBy by) {
  fields_[kChoiceBreakEven] = cost.break_even();
  fields_[kChoiceBy] = static_cast<double>(by);
}

Way ProductChoice::way(double sparsity) const {
  if (is_timing()) return Way::kBoth;
  switch (setting()) {
    case SparseWay::kDense:
      return Way::kDense;
    case SparseWay::kSparse:
      return Way::kSparse;
    case SparseWay::kAuto:
      break;
  }
  // Where none pays the break-even is 1, and all zeros are no reason to be sparse, either.
  const double break_even = fields_[kChoiceBreakEven];
  return break_even < 1 && sparsity >= break_even ? Way::kSparse : Way::kDense;
}

void ProductChoice::forget_trials() {
  if (setting() == SparseWay::kAuto)
    std::fill(fields_ + kChoiceTrials, fields_ + kChoiceProductFields, 0.0);
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

void ProductChoice::pin_trials() {
  if (setting() == SparseWay::kAuto && fields_[kChoiceTrials] > 0)
    decide(best_times(), ChosenBy::kTiming);
}

SparseProductReport ProductChoice::report() const {
  const SparseWay set = setting();
  const bool by_hand = set != SparseWay::kAuto, open = field(kChoiceBy) == 0;
  return {.setting = set,
          .chosen_by = by_hand ? ChosenBy::kUser : static_cast<ChosenBy>(field(kChoiceBy)),
          .break_even = open ? std::numeric_limits<double>::quiet_NaN() : fields_[kChoiceBreakEven],
          .was_sparse = field(kChoiceLast) != 0,
          .trials = field(kChoiceTrials),
          .dense_seconds = fields_[kChoiceDense],
          .compress_seconds = fields_[kChoiceCompress],
          .multiply_seconds = fields_[kChoiceMultiply]};
}

void check_product_settings(const GradientSettings& settings, const char* op) {
  check(settings.prune == PruneKind::kNone || settings.prune == PruneKind::kStochastic, op,
        "a plan that prunes stochastically or not at all", prune_kind_name(settings.prune));
  check(settings.bits == 0, op, "a plan that does not quantize", settings.bits, " bits");
}

void check_layer_state(const at::Tensor& x, const SparseLayerState& state, const char* op) {
  const auto lock = lock_plans();
  const auto check_product = [&](const at::Tensor& plan, const char* plan_name,
                                 const at::Tensor& stats, const char* stats_name) {
    if (!is_on_device(plan) && has_values(x, plan))
      check_product_settings(read_plan(plan, op, plan_name).options.settings, op);
    if (has_values(x, stats)) check_layer_stats(stats, op, stats_name);
  };
  check_product(state.weight_plan, "weight_plan", state.weight_stats, "weight_stats");
  check_product(state.input_plan, "input_plan", state.input_stats, "input_stats");
  if (!has_values(x, state.choice)) return;
  for (const Product product : {Product::kWeight, Product::kInput})
    ProductChoice(state.choice, product, op);
}

}  // namespace slimgrad::torch_ops
