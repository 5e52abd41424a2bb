#include "torch/plan_tensor.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include <ATen/ops/zeros.h>

#include "base/check.h"

namespace slimgrad::torch_ops {
namespace {

constexpr const char* kGate = "gradient_gate";

void check_state(const at::Tensor& tensor, std::int64_t size, const char* op, const char* name) {
  check(tensor.defined() && tensor.device().is_cpu() && tensor.scalar_type() == at::kDouble &&
            tensor.is_contiguous() && tensor.numel() == size,
        op,
        std::string("the buffer ") + name + " as a contiguous float64 CPU tensor of " +
            std::to_string(size) + " elements",
        "a tensor of ", tensor.numel(), " elements of type ", tensor.scalar_type(), " on ",
        tensor.device());
}

template <typename Enum>
Enum enum_of(double value, int last, const char* field) {
  check(value >= 0 && value <= last && value == std::floor(value), kGate,
        std::string("a valid ") + field + " in the plan", value);
  return static_cast<Enum>(static_cast<int>(value));
}

// A number of things, or of seed bits, that is stored as a float64.
std::int64_t count_of(double value, const char* field) {
  check(value >= 0 && value <= 0x1p53 && value == std::floor(value), kGate,
        std::string("a whole number >= 0 as ") + field + " in the plan", value);
  return static_cast<std::int64_t>(value);
}

std::optional<FloatFormat> format_of(double exponent_bits, double mantissa_bits) {
  if (exponent_bits == 0) return std::nullopt;
  return FloatFormat(static_cast<int>(count_of(exponent_bits, "exponent bits")),
                     static_cast<int>(count_of(mantissa_bits, "mantissa bits")));
}

// Linear between the rows of the schedule; `otherwise` if there is none.
double scheduled_sparsity(const double* rows, double call, double otherwise) {
  int used = 0;
  while (used < kScheduleRows && rows[2 * used] >= 0) ++used;
  if (used == 0) return otherwise;
  if (call <= rows[0]) return rows[1];
  for (int i = 1; i < used; ++i) {
    const double from = rows[2 * i - 2], to = rows[2 * i];
    if (call < to)
      return rows[2 * i - 1] + (rows[2 * i + 1] - rows[2 * i - 1]) * (call - from) / (to - from);
  }
  return rows[2 * used - 1];
}

}  // namespace

PlanState read_plan(const at::Tensor& tensor) {
  check_plan(tensor, kGate);
  const double* plan = tensor.const_data_ptr<double>();
  PlanState state;
  GateOptions& options = state.options;
  options.seed = static_cast<std::uint64_t>(count_of(plan[kPlanSeedLow], "seed")) |
                 static_cast<std::uint64_t>(count_of(plan[kPlanSeedHigh], "seed")) << 32;
  options.min_elements = count_of(plan[kPlanMinElements], "min_elements");
  options.sample_size = count_of(plan[kPlanSampleSize], "sample size");
  options.refresh_every = count_of(plan[kPlanRefreshEvery], "refresh interval");
  options.warmup = count_of(plan[kPlanWarmup], "warm-up");
  state.calls = count_of(plan[kPlanCalls], "calls");
  state.due = plan[kPlanDue] != 0;
  check(options.sample_size > 0, kGate, "a positive sample size in the plan", options.sample_size);

  GradientSettings& settings = options.settings;
  settings.prune = enum_of<PruneKind>(plan[kPlanPrune], 3, "prune kind");
  settings.method = enum_of<ThresholdMethod>(plan[kPlanMethod], 4, "threshold method");
  settings.sparsity =
      scheduled_sparsity(plan + kPlanSchedule, plan[kPlanCalls], plan[kPlanSparsity]);
  check(settings.sparsity >= 0 && settings.sparsity < 1, kGate, "0 <= sparsity < 1 in the plan",
        settings.sparsity);
  settings.bits = static_cast<int>(count_of(plan[kPlanBits], "bits"));
  check(settings.bits == 0 || (settings.bits >= 2 && settings.bits <= 8), kGate,
        "0 or 2 to 8 bits in the plan", settings.bits);
  settings.format = format_of(plan[kPlanExponentBits], plan[kPlanMantissaBits]);
  settings.split = enum_of<SplitMethod>(plan[kPlanSplit], 2, "split method");
  settings.scale_method = enum_of<ScaleMethod>(plan[kPlanScaleMethod], 2, "scale method");
  settings.fixed_scale = plan[kPlanFixedScale];
  check(std::isfinite(settings.fixed_scale) && settings.fixed_scale >= 0, kGate,
        "a finite fixed scale >= 0 in the plan", settings.fixed_scale);
  settings.rounding = enum_of<Rounding>(plan[kPlanRounding], 1, "rounding");
  settings.underflow = enum_of<Underflow>(plan[kPlanUnderflow], 1, "underflow");

  state.in_force.prune = enum_of<PruneKind>(plan[kPlanInForcePrune], 3, "prune kind");
  state.in_force.threshold = plan[kPlanThreshold];
  check(state.in_force.threshold >= 0, kGate, "a threshold >= 0 in the plan",
        state.in_force.threshold);
  if (const auto format = format_of(plan[kPlanFormatExponent], plan[kPlanFormatMantissa]))
    state.in_force.quantizer =
        Quantizer{*format, plan[kPlanScale], settings.rounding, settings.underflow};
  return state;
}

void write_plan(const PlanState& state, const at::Tensor& tensor) {
  double* plan = tensor.mutable_data_ptr<double>();
  plan[kPlanCalls] = static_cast<double>(state.calls);
  plan[kPlanDue] = state.due ? 1 : 0;
  plan[kPlanSparsity] = state.options.settings.sparsity;
  plan[kPlanThreshold] = state.in_force.threshold;
  plan[kPlanInForcePrune] = static_cast<double>(state.in_force.prune);
  const auto& quantizer = state.in_force.quantizer;
  plan[kPlanFormatExponent] = quantizer ? quantizer->format.exponent_bits() : 0;
  plan[kPlanFormatMantissa] = quantizer ? quantizer->format.mantissa_bits() : 0;
  plan[kPlanScale] = quantizer ? quantizer->scale : 0;
}

void check_plan(const at::Tensor& plan, const char* op) {
  check_state(plan, kPlanSize, op, "plan");
}

void check_layer_stats(const at::Tensor& stats, const char* op) {
  check_state(stats, kLayerStatsSize, op, "stats");
}

void write_report(const GateReport& report, const at::Tensor& stats) {
  double* values = stats.mutable_data_ptr<double>();
  values[kReportElements] = static_cast<double>(report.elements);
  values[kReportWanted] = report.sparsity_wanted;
  values[kReportAchieved] = report.sparsity;
  values[kReportAtThreshold] = report.at_threshold;
  values[kReportCosine] = report.cosine;
  values[kReportRelativeError] = report.relative_error;
  values[kReportNonfinite] = static_cast<double>(report.nonfinite);
  values[kReportCompressed] = report.compressed ? 1 : 0;
  values[kReportSaturated] = report.saturated ? 1 : 0;
  values[kReportBias] = report.bias;
}

}  // namespace slimgrad::torch_ops

namespace slimgrad {

at::Tensor new_gate_plan(const GateOptions& options) {
  using namespace torch_ops;
  at::Tensor tensor = at::zeros({kPlanSize}, at::kDouble);
  double* plan = tensor.mutable_data_ptr<double>();
  plan[kPlanSeedLow] = static_cast<double>(options.seed & 0xffffffffu);
  plan[kPlanSeedHigh] = static_cast<double>(options.seed >> 32);
  plan[kPlanMinElements] = static_cast<double>(options.min_elements);
  plan[kPlanSampleSize] = static_cast<double>(options.sample_size);
  plan[kPlanRefreshEvery] = static_cast<double>(options.refresh_every);
  plan[kPlanWarmup] = static_cast<double>(options.warmup);
  const GradientSettings& settings = options.settings;
  plan[kPlanPrune] = static_cast<double>(settings.prune);
  plan[kPlanMethod] = static_cast<double>(settings.method);
  plan[kPlanBits] = settings.bits;
  plan[kPlanExponentBits] = settings.format ? settings.format->exponent_bits() : 0;
  plan[kPlanMantissaBits] = settings.format ? settings.format->mantissa_bits() : 0;
  plan[kPlanScaleMethod] = static_cast<double>(settings.scale_method);
  plan[kPlanFixedScale] = settings.fixed_scale;
  plan[kPlanRounding] = static_cast<double>(settings.rounding);
  plan[kPlanUnderflow] = static_cast<double>(settings.underflow);
  plan[kPlanSplit] = static_cast<double>(settings.split);
  std::fill(plan + kPlanSchedule, plan + kPlanSchedule + 2 * kScheduleRows, -1.0);
  PlanState state;
  state.options = options;
  write_plan(state, tensor);
  return tensor;
}

at::Tensor new_gate_stats() { return at::zeros({torch_ops::kLayerStatsSize}, at::kDouble); }

GateReport gate_report(const at::Tensor& plan, const at::Tensor& stats) {
  using namespace torch_ops;
  check_layer_stats(stats, "gate_report");
  const PlanState state = read_plan(plan);
  const double* values = stats.const_data_ptr<double>();
  return {.calls = state.calls,
          .elements = static_cast<std::int64_t>(values[kReportElements]),
          .nonfinite = static_cast<std::int64_t>(values[kReportNonfinite]),
          .compressed = values[kReportCompressed] != 0,
          .saturated = values[kReportSaturated] != 0,
          .log_std = values[kLogStdField],
          .sparsity_wanted = values[kReportWanted],
          .sparsity = values[kReportAchieved],
          .at_threshold = values[kReportAtThreshold],
          .cosine = values[kReportCosine],
          .relative_error = values[kReportRelativeError],
          .bias = values[kReportBias],
          .threshold = state.in_force.threshold,
          .quantizer = state.in_force.quantizer};
}

}  // namespace slimgrad
