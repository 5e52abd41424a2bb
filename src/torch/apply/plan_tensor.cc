#include "torch/apply/plan_tensor.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

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

std::vector<SparsityAt> schedule_of(const double* rows) {
  std::vector<SparsityAt> schedule;
  for (std::size_t i = 0; i < kMostSchedulePoints && rows[2 * i] >= 0; ++i)
    schedule.push_back({count_of(rows[2 * i], "a call of the schedule"), rows[2 * i + 1]});
  return schedule;
}

}  // namespace

std::vector<std::string> plan_field_names() {
  std::vector<std::string> names = {
      "min_elements", "sample_size", "refresh_every", "warmup",        "prune",
      "method",       "bits",        "exponent_bits", "mantissa_bits", "split",
      "scale_method", "rounding",    "underflow",     "target"};
  for (std::size_t i = 0; i < kMostSchedulePoints; ++i)
    for (const char* part : {"call", "sparsity"})
      names.push_back("schedule_" + std::string(part) + "_" + std::to_string(i));
  for (const char* name :
       {"seed_low", "seed_high", "calls", "due", "sparsity", "fixed_scale", "threshold", "drops",
        "format_exponent", "format_mantissa", "scale", "good_steps", "seen_calls"})
    names.push_back(name);
  return names;
}

GateState read_plan(const at::Tensor& tensor) {
  check_plan(tensor, kGate);
  const double* plan = tensor.const_data_ptr<double>();
  GateState gate;
  GateOptions& options = gate.options;
  options.seed = static_cast<std::uint64_t>(count_of(plan[kPlanSeedLow], "seed")) |
                 static_cast<std::uint64_t>(count_of(plan[kPlanSeedHigh], "seed")) << 32;
  options.min_elements = count_of(plan[kPlanMinElements], "min_elements");
  options.sample_size = count_of(plan[kPlanSampleSize], "sample size");
  options.refresh_every = count_of(plan[kPlanRefreshEvery], "refresh interval");
  options.warmup = count_of(plan[kPlanWarmup], "warm-up");
  options.schedule = schedule_of(plan + kPlanSchedule);

  GradientSettings& settings = options.settings;
  settings.prune = enum_of<PruneKind>(plan[kPlanPrune], 3, "prune kind");
  settings.method = enum_of<ThresholdMethod>(plan[kPlanMethod], 4, "threshold method");
  settings.sparsity = plan[kPlanSparsity];
  settings.bits = static_cast<int>(count_of(plan[kPlanBits], "bits"));
  settings.format = format_of(plan[kPlanExponentBits], plan[kPlanMantissaBits]);
  settings.split = enum_of<SplitMethod>(plan[kPlanSplit], 2, "split method");
  settings.scale_method = enum_of<ScaleMethod>(plan[kPlanScaleMethod], 2, "scale method");
  settings.fixed_scale = plan[kPlanFixedScale];
  settings.rounding = enum_of<Rounding>(plan[kPlanRounding], 1, "rounding");
  settings.underflow = enum_of<Underflow>(plan[kPlanUnderflow], 1, "underflow");
  check_gate_options(options, kGate);

  gate.calls = count_of(plan[kPlanCalls], "calls");
  gate.due = plan[kPlanDue] != 0;
  gate.target = plan[kPlanTarget];
  gate.good_steps = count_of(plan[kPlanGoodSteps], "good steps");
  gate.seen_calls = count_of(plan[kPlanSeenCalls], "calls seen");
  gate.in_force.threshold = plan[kPlanThreshold];
  check(gate.in_force.threshold >= 0, kGate, "a threshold >= 0 in the plan",
        gate.in_force.threshold);
  gate.in_force.drops = plan[kPlanDrops] != 0;
  if (const auto format = format_of(plan[kPlanFormatExponent], plan[kPlanFormatMantissa]))
    gate.in_force.quantizer =
        Quantizer{*format, plan[kPlanScale], settings.rounding, settings.underflow};
  return gate;
}

void write_plan(const GateState& gate, const at::Tensor& tensor) {
  double* plan = tensor.mutable_data_ptr<double>();
  const GateOptions& options = gate.options;
  plan[kPlanSeedLow] = static_cast<double>(options.seed & 0xffffffffu);
  plan[kPlanSeedHigh] = static_cast<double>(options.seed >> 32);
  plan[kPlanMinElements] = static_cast<double>(options.min_elements);
  plan[kPlanSampleSize] = static_cast<double>(options.sample_size);
  plan[kPlanRefreshEvery] = static_cast<double>(options.refresh_every);
  plan[kPlanWarmup] = static_cast<double>(options.warmup);
  for (std::size_t i = 0; i < kMostSchedulePoints; ++i) {
    const bool used = i < options.schedule.size();
    plan[kPlanSchedule + 2 * i] = used ? static_cast<double>(options.schedule[i].call) : -1;
    plan[kPlanSchedule + 2 * i + 1] = used ? options.schedule[i].sparsity : -1;
  }

  const GradientSettings& settings = options.settings;
  plan[kPlanPrune] = static_cast<double>(settings.prune);
  plan[kPlanMethod] = static_cast<double>(settings.method);
  plan[kPlanSparsity] = settings.sparsity;
  plan[kPlanBits] = settings.bits;
  plan[kPlanExponentBits] = settings.format ? settings.format->exponent_bits() : 0;
  plan[kPlanMantissaBits] = settings.format ? settings.format->mantissa_bits() : 0;
  plan[kPlanSplit] = static_cast<double>(settings.split);
  plan[kPlanScaleMethod] = static_cast<double>(settings.scale_method);
  plan[kPlanFixedScale] = settings.fixed_scale;
  plan[kPlanRounding] = static_cast<double>(settings.rounding);
  plan[kPlanUnderflow] = static_cast<double>(settings.underflow);

  plan[kPlanCalls] = static_cast<double>(gate.calls);
  plan[kPlanDue] = gate.due ? 1 : 0;
  plan[kPlanTarget] = gate.target;
  plan[kPlanGoodSteps] = static_cast<double>(gate.good_steps);
  plan[kPlanSeenCalls] = static_cast<double>(gate.seen_calls);
  plan[kPlanThreshold] = gate.in_force.threshold;
  plan[kPlanDrops] = gate.in_force.drops ? 1 : 0;
  const auto& quantizer = gate.in_force.quantizer;
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
  at::Tensor plan = at::zeros({torch_ops::kPlanSize}, at::kDouble);
  torch_ops::write_plan(new_gate(options), plan);
  return plan;
}

at::Tensor new_gate_stats() { return at::zeros({torch_ops::kLayerStatsSize}, at::kDouble); }

GateReport gate_report(const at::Tensor& plan, const at::Tensor& stats) {
  using namespace torch_ops;
  check_layer_stats(stats, "gate_report");
  const GateState gate = read_plan(plan);
  const double* values = stats.const_data_ptr<double>();
  return {.calls = gate.calls,
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
          .threshold = gate.in_force.threshold,
          .quantizer = gate.in_force.quantizer};
}

}  // namespace slimgrad
