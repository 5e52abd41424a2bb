// The state of one compressed layer as two float64 tensors, so that it is saved as tensors, a
// resumed run continues it to the bit, and torch.compile sees nothing but tensors. They are on the
// CPU, or beside the gradients on a device that plans by itself (state_place.h).
//
// `plan`: what the user wants, and what a gate remembers (slimgrad/gate.h).
// `stats`: what the last backward pass saw and did: the statistics of its sample (stats_tensor.h),
// then fields of GateReport.
// The fields and their order are those of arrays/decide/gate_fields.h.
#ifndef SLIMGRAD_TORCH_DECIDE_PLAN_TENSOR_H_
#define SLIMGRAD_TORCH_DECIDE_PLAN_TENSOR_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <slimgrad/gradient_gate.h>

#include "arrays/decide/gate_pass.h"
#include "torch/measure/stats_tensor.h"

namespace slimgrad::torch_ops {

// The schema of new_gate_plan, which takes the options of a gate by name.
std::string new_gate_plan_schema();

// Those of a plan, in the order of the tensor.
const std::vector<std::string>& plan_field_names();
std::int64_t plan_size();
std::int64_t layer_stats_size();

// Throws InvalidArgument, in the name of `op`, unless `plan`, which the error calls `name`, is a
// contiguous float64 tensor of plan_size() elements with values in range, on the CPU or on a device
// with kernels, for which this waits.
GateState read_plan(const at::Tensor& plan, std::string_view op, const char* name = "plan");

// The same of a gate's tensors before a forward pass with x: what is wrong shows there, not first
// in backward. Nothing is wrong with tensors that have no values to look at, as those that
// torch.compile traces with.
void check_gate(const at::Tensor& x, const at::Tensor& plan, const at::Tensor& stats,
                const char* op);
// Whether a state beside x has values to look at, or ought to.
bool has_values(const at::Tensor& x, const at::Tensor& state);

void write_plan(const GateState& gate, const at::Tensor& plan);

// Must be held to change a plan or its statistics, from reading to writing, but not while a
// gradient is treated. One for all plans: it is held for microseconds.
[[nodiscard]] std::unique_lock<std::recursive_mutex> lock_plans();

// Throws InvalidArgument, in the name of `op`, for a tensor of another type, size, device or
// layout.
void check_layer_stats(const at::Tensor& stats, std::string_view op, const char* name = "stats");
// The same for values that no pass can have written.
void check_saved_stats(const at::Tensor& stats, std::string_view op, const char* name);

// A backward pass through the gate that two tensors hold. Its number is taken in the plan at once:
// two threads that pass through one gate have numbers, and draws, of their own.
class TensorPass {
 public:
  TensorPass(const at::Tensor& plan, const at::Tensor& stats, std::int64_t num_values, DType type,
             std::int64_t stream, const char* op, const std::string& product = "");
  TensorPass(const TensorPass&) = delete;

  const GradientSettings& settings() const { return gate_.options.settings; }
  GatePass* operator->() { return &pass_; }
  const GatePass* operator->() const { return &pass_; }
  // Writes what the pass changed. A gradient that was not looked at leaves the older statistics, so
  // that an allocation over all layers still counts its layer.
  void close();

 private:
  const at::Tensor plan_, stats_;
  GateState gate_;
  GatePass pass_;
};

// What looks at all gates at once (slimgrad/gate.h), on the tensors that hold them.
void allocate_plans(at::TensorList plans, at::TensorList stats, AllocationObjective objective,
                    ThresholdMethod method, double cap, std::span<const CosineTarget> targets);
void update_loss_scales(at::TensorList plans, at::TensorList stats, std::int64_t growth_interval);

}  // namespace slimgrad::torch_ops

#endif  // SLIMGRAD_TORCH_DECIDE_PLAN_TENSOR_H_
