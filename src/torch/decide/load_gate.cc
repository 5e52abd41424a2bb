// load_gate: a saved state into the tensors of a gate. The saved pair is looked at wholly before
// anything is written: a checkpoint may be damaged, or another file.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <slimgrad/gradient_gate.h>

#include "base/check.h"
#include "torch/checks.h"
#include "torch/decide/plan_tensor.h"
#include "torch/errors.h"
#include "torch/no_gradient.h"

namespace slimgrad::torch_ops {
namespace {

constexpr const char* kLoadGate = "load_gate";

// Every field is as write_plan() would write it: those that read_plan() has no use for, too.
GateState read_saved_plan(const at::Tensor& saved) {
  GateState gate = read_plan(saved, kLoadGate, "saved_plan");
  const at::Tensor again = at::empty({kPlanSize}, at::kDouble);
  write_plan(gate, again);
  const double *found = saved.const_data_ptr<double>(), *expected = again.const_data_ptr<double>();
  for (std::int64_t i = 0; i < kPlanSize; ++i)
    if (found[i] != expected[i])
      throw_invalid(kLoadGate, "saved_plan to be the plan of a gate, unchanged", "one with ",
                    plan_field_names()[static_cast<std::size_t>(i)], " = ", found[i]);
  return gate;
}

// What a pass can have written. Cosine, relative error and bias are left out: they are quotients of
// what the gradient happened to be, and nothing is decided by them.
void check_saved_stats(const at::Tensor& saved) {
  check_state(saved, kLayerStatsSize, kLoadGate, "saved_stats");
  const double* const fields = saved.const_data_ptr<double>();
  const auto require = [&](std::int64_t field, const char* what, bool holds) {
    check(holds, kLoadGate, std::string("in saved_stats ") + what, fields[field]);
  };
  const auto whole = [&](std::int64_t field, const char* what, double last = 0x1p53) {
    const double value = fields[field];
    require(field, what, value >= 0 && value <= last && value == std::floor(value));
  };
  const auto share = [&](std::int64_t field, const char* what) {
    require(field, what, fields[field] >= 0 && fields[field] <= 1);
  };
  whole(kCountField, "a number of elements");
  whole(kZerosField, "a number of zeros among them", fields[kCountField]);
  whole(kNonfiniteField, "a number of NaN and Inf among them", fields[kCountField]);
  share(kZeroFractionField, "a fraction of zeros from 0 to 1");
  require(kLogMeanField, "a finite log_mean", std::isfinite(fields[kLogMeanField]));
  for (const StatsField field : {kLogStdField, kMaxAbsField, kMeanAbsField, kMeanSquareField})
    require(field, "finite magnitudes >= 0", fields[field] >= 0 && std::isfinite(fields[field]));
  for (std::int64_t bin = kStatsFields; bin < kStatsTensorSize; ++bin)
    whole(bin, "whole numbers >= 0 as a histogram");
  whole(kReportElements, "a number of elements passed");
  share(kReportWanted, "a wanted sparsity from 0 to 1");
  share(kReportAchieved, "a sparsity from 0 to 1");
  share(kReportAtThreshold, "a fraction at the threshold from 0 to 1");
  whole(kReportNonfinite, "a number of NaN and Inf passed", fields[kReportElements]);
  whole(kReportCompressed, "0 or 1 as compressed", 1);
  whole(kReportSaturated, "0 or 1 as saturated", 1);
}

std::vector<std::string> load_gate_op(at::Tensor plan, at::Tensor stats,
                                      const at::Tensor& saved_plan, const at::Tensor& saved_stats) {
  return load_gate(plan, stats, saved_plan, saved_stats);
}

}  // namespace

// No Meta kernel: the result depends on values.
TORCH_LIBRARY_IMPL(slimgrad, CompositeExplicitAutograd, m) {
  m.impl("load_gate_", ValueErrors<&load_gate_op>::call);
}
TORCH_LIBRARY_IMPL(slimgrad, Autograd, m) { m.impl("load_gate_", no_gradient()); }

}  // namespace slimgrad::torch_ops

namespace slimgrad {

std::vector<std::string> load_gate(const at::Tensor& plan, const at::Tensor& stats,
                                   const at::Tensor& saved_plan, const at::Tensor& saved_stats) {
  using namespace torch_ops;
  const auto lock = lock_plans();
  GateState gate = read_plan(plan, kLoadGate);
  check_layer_stats(stats, kLoadGate);
  const at::Tensor plan_here = saved_here(saved_plan), stats_here = saved_here(saved_stats);
  const GateState saved = read_saved_plan(plan_here);
  check_saved_stats(stats_here);
  const std::vector<std::string> differences = resume_gate(gate, saved);
  write_plan(gate, plan);
  stats.copy_(stats_here);
  return differences;
}

}  // namespace slimgrad
