// The state of one compressed layer as two float64 tensors on the CPU, wherever the layer is, so
// that it is saved as tensors, a resumed run continues it to the bit, and torch.compile sees
// nothing but tensors.
//
// `plan`: what the user wants, and what a gate remembers (slimgrad/gate.h).
// `stats`: what the last backward pass saw and did: the statistics of its sample (stats_tensor.h),
// then the fields of GateReport.
#ifndef SLIMGRAD_TORCH_DECIDE_PLAN_TENSOR_H_
#define SLIMGRAD_TORCH_DECIDE_PLAN_TENSOR_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include <slimgrad/gradient_gate.h>

#include "torch/measure/stats_tensor.h"

namespace slimgrad::torch_ops {

// The order is the layout; plan_field_names() has the names. No other file knows it.
enum PlanField : std::int64_t {
  // What the user wants: GateOptions.
  kPlanMinElements,
  kPlanSampleSize,
  kPlanRefreshEvery,
  kPlanWarmup,
  kPlanPrune,         // PruneKind
  kPlanMethod,        // ThresholdMethod
  kPlanBits,          // 0: do not quantize
  kPlanExponentBits,  // 0: by what is measured
  kPlanMantissaBits,
  kPlanSplit,        // SplitMethod
  kPlanScaleMethod,  // ScaleMethod
  kPlanRounding,     // Rounding
  kPlanUnderflow,    // Underflow
  kPlanTarget,       // sparsity over all layers, which an allocation spreads; the same in every one
  kPlanAskedScale,   // 0: by the scale method
  kPlanAllocation,   // AllocationObjective
  kPlanDynamicScale,
  kPlanSchedule,  // pairs (call, sparsity); unused ones hold -1
  // What changes, or must be the same for a run to go on: the rest of GateState.
  kPlanState = kPlanSchedule + 2 * 8,
  kPlanSeedLow = kPlanState,  // the seed in two halves: a float64 holds 53 bits
  kPlanSeedHigh,
  kPlanCalls,
  kPlanDue,
  kPlanSparsity,    // wanted now; a schedule or an allocation writes it
  kPlanFixedScale,  // used now; a dynamic loss scale writes it
  kPlanThreshold,   // of the treatment in force
  kPlanDrops,
  kPlanFormatExponent,  // 0: no quantizer
  kPlanFormatMantissa,
  kPlanScale,
  kPlanGoodSteps,
  kPlanSeenCalls,
  kPlanSize,
};
static_assert(kMostSchedulePoints == 8);

enum ReportField : std::int64_t {
  kReportElements = kStatsTensorSize,
  kReportWanted,    // sparsity
  kReportAchieved,  // counted over the whole tensor
  kReportAtThreshold,
  kReportCosine,  // of gradient and compressed gradient, on the sample
  kReportRelativeError,
  kReportNonfinite,
  kReportCompressed,  // 0: left alone (too small, warm-up, nothing finite)
  kReportSaturated,   // whether the sample or the maximum exceeded the grid's top
  kReportBias,        // of the sum over the sample, over the sum of magnitudes
  kLayerStatsSize,
};

std::vector<std::string> plan_field_names();

// Throws InvalidArgument, in the name of `op`, unless `plan`, which the error calls `name`, is a
// contiguous float64 CPU tensor of kPlanSize elements with values in range.
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

// The state for a backward pass, whose number is taken in the plan at once: two threads that pass
// through one gate have numbers, and draws, of their own.
GateState begin_pass(const at::Tensor& plan, const char* op, const char* name = "plan");
// What a pass changes of a plan, beside the number of calls.
void end_pass(const GateState& gate, const at::Tensor& plan);

// Throws InvalidArgument, in the name of `op`, for a tensor of another type, size, device or
// layout.
void check_layer_stats(const at::Tensor& stats, const char* op, const char* name = "stats");
// What a backward pass did, into the fields behind the statistics, which write_stats() writes.
void write_report(const GateReport& report, const at::Tensor& stats);

}  // namespace slimgrad::torch_ops

#endif  // SLIMGRAD_TORCH_DECIDE_PLAN_TENSOR_H_
