// The state of a gate as numbers in a row, as tensors hold it and kernels of devices read it: where
// each field of a plan lies, and each field of a report behind the statistics (stats_fields.h).
// What the fields are is said in arrays/decide/gate_fields.h, which makes the rows; a test compares
// the two.
#ifndef SLIMGRAD_FORMATS_GATE_FIELDS_H_
#define SLIMGRAD_FORMATS_GATE_FIELDS_H_

namespace slimgrad {

enum PlanField : int {
  kMinElementsField,
  kSampleSizeField,
  kRefreshEveryField,
  kWarmupField,
  kPruneField,
  kMethodField,
  kBitsField,
  kExponentBitsField,
  kMantissaBitsField,
  kSplitField,
  kScaleMethodField,
  kRoundingField,
  kUnderflowField,
  kTargetField,
  kAskedScaleField,
  kAllocationField,
  kDynamicScaleField,
  kScheduleField,  // pairs of a call and a sparsity; those that are not used hold -1
  kSeedLowField = kScheduleField + 2 * 8,
  kSeedHighField,
  kCallsField,
  kDueField,
  kSparsityField,
  kFixedScaleField,
  kThresholdField,
  kDropsField,
  kFormatExponentField,
  kFormatMantissaField,
  kScaleField,
  kGoodStepsField,
  kSeenCallsField,
  kPlanFields,
};

enum ReportFieldAt : int {
  kElementsReport,
  kSparsityWantedReport,
  kSparsityReport,
  kAtThresholdReport,
  kCosineReport,
  kRelativeErrorReport,
  kNonfiniteReport,
  kCompressedReport,
  kSaturatedReport,
  kBiasReport,
  kReportFields,
};

}  // namespace slimgrad

#endif  // SLIMGRAD_FORMATS_GATE_FIELDS_H_
