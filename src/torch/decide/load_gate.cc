// load_gate: a saved state into the tensors of a gate. The saved pair is looked at wholly before
// anything is written: a checkpoint may be damaged, or another file.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cstdint>
#include <string>
#include <vector>

#include <slimgrad/gradient_gate.h>

#include "base/check.h"
#include "torch/checks.h"
#include "torch/decide/plan_tensor.h"

namespace slimgrad {
namespace {

constexpr const char* kLoadGate = "load_gate";

// Every field is as write_plan() would write it: those that read_plan() has no use for, too.
GateState read_saved_plan(const at::Tensor& saved) {
  using namespace torch_ops;
  GateState gate = read_plan(saved, kLoadGate, "saved_plan");
  const at::Tensor again = at::empty({plan_size()}, at::kDouble);
  write_plan(gate, again);
  const double *found = saved.const_data_ptr<double>(), *expected = again.const_data_ptr<double>();
  for (std::int64_t i = 0; i < plan_size(); ++i)
    if (found[i] != expected[i])
      throw_invalid(kLoadGate, "saved_plan to be the plan of a gate, unchanged", "one with ",
                    plan_field_names()[static_cast<std::size_t>(i)], " = ", found[i]);
  return gate;
}

}  // namespace

std::vector<std::string> load_gate(const at::Tensor& plan, const at::Tensor& stats,
                                   const at::Tensor& saved_plan, const at::Tensor& saved_stats) {
  using namespace torch_ops;
  const auto lock = lock_plans();
  GateState gate = read_plan(plan, kLoadGate);
  check_layer_stats(stats, kLoadGate);
  const at::Tensor plan_here = saved_here(saved_plan), stats_here = saved_here(saved_stats);
  const GateState saved = read_saved_plan(plan_here);
  check_saved_stats(stats_here, kLoadGate, "saved_stats");
  const std::vector<std::string> differences = resume_gate(gate, saved);
  write_plan(gate, plan);
  stats.copy_(stats_here);
  return differences;
}

}  // namespace slimgrad
