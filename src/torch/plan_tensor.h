// The state of one compressed layer as two float64 tensors, so that state_dict saves it, a resumed
// run continues it to the bit, and torch.compile sees nothing but tensors.
//
// `plan`: what the user wants, the schedule, the counters, and the plan in force.
// `stats`: what the last backward pass saw and did: the statistics of its sample (stats_tensor.h),
// then the fields of GateReport.
#ifndef SLIMGRAD_TORCH_PLAN_TENSOR_H_
#define SLIMGRAD_TORCH_PLAN_TENSOR_H_

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

#include <slimgrad/gradient_gate.h>

#include "torch/stats_tensor.h"

namespace slimgrad::torch_ops {

// The order is the layout; Python names the same fields (python/slimgrad/plan.py). Append only.
enum PlanField : std::int64_t {
  // What the user wants.
  kPlanSeedLow,  // the seed in two halves: a float64 holds 53 bits
  kPlanSeedHigh,
  kPlanMinElements,   // smaller gradients are left alone
  kPlanSampleSize,    // how many values are measured
  kPlanRefreshEvery,  // plan anew every so many calls; 0: only when kPlanDue is set
  kPlanPrune,         // PruneKind
  kPlanSparsity,      // wanted now; a schedule or an allocation writes it
  kPlanMethod,        // ThresholdMethod
  kPlanBits,          // 0: do not quantize
  kPlanExponentBits,  // 0: by the measured spread
  kPlanMantissaBits,
  kPlanScaleMethod,  // ScaleMethod
  kPlanFixedScale,   // positive: used instead
  kPlanRounding,     // Rounding
  kPlanUnderflow,    // Underflow
  // Counters, and the plan in force.
  kPlanCalls,  // backward passes so far; also numbers the random draws
  kPlanDue,    // 1: plan anew in the next call
  kPlanThreshold,
  kPlanInForcePrune,    // PruneKind
  kPlanFormatExponent,  // 0: no quantizer
  kPlanFormatMantissa,
  kPlanScale,
  // Sparsity by call: kScheduleRows pairs (call, sparsity), ascending, linear in between; the
  // sparsity
  // of the first holds before it, unused rows hold -1. No pruning and no quantizing before
  // kPlanWarmup calls: the tensor is measured only.
  kPlanWarmup,
  kPlanTarget,     // sparsity over all layers, which an allocation spreads; the same in every layer
  kPlanGoodSteps,  // of a dynamic loss scale, since its last change
  kPlanSeenCalls,  // kPlanCalls when it was last looked at
  kPlanSchedule,
  kPlanSplit = kPlanSchedule + 2 * 8,  // SplitMethod
  kPlanSize,
};
inline constexpr int kScheduleRows = 8;

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

struct PlanState {
  GateOptions options;
  std::int64_t calls = 0;
  bool due = true;
  GradientPlan in_force;
};

// Throws InvalidArgument unless `plan` is a contiguous float64 CPU tensor of kPlanSize elements
// with values in range; reads the schedule into options.settings.sparsity.
PlanState read_plan(const at::Tensor& plan);

// Writes back what a call changes: counters, the wanted sparsity, and the plan in force.
void write_plan(const PlanState& state, const at::Tensor& plan);

// Throw InvalidArgument, in the name of `op`, for a buffer of another type, size or layout.
void check_plan(const at::Tensor& plan, const char* op);
void check_layer_stats(const at::Tensor& stats, const char* op);
// What a backward pass did, into the fields behind the statistics, which write_stats() writes.
void write_report(const GateReport& report, const at::Tensor& stats);

}  // namespace slimgrad::torch_ops

#endif  // SLIMGRAD_TORCH_PLAN_TENSOR_H_
