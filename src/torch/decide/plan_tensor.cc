#include "torch/decide/plan_tensor.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/ops/zeros.h>

#include "base/check.h"
#include "torch/checks.h"
#include "torch/fresh_seed.h"

namespace slimgrad::torch_ops {
namespace {

// Reads fields, and refuses values that write_plan() does not write.
class PlanReader {
 public:
  PlanReader(const at::Tensor& plan, std::string_view op, const char* name)
      : fields_(plan.const_data_ptr<double>()), op_(op), name_(name) {}

  double number(std::int64_t field) const { return fields_[field]; }

  template <typename Enum>
  Enum one_of(std::int64_t field, int last, const char* what) const {
    if (!is_whole(field, last)) refuse(field, std::string("a valid ") + what);
    return static_cast<Enum>(static_cast<int>(fields_[field]));
  }

  // A number of things, or of seed bits, that is stored as a float64.
  std::int64_t count(std::int64_t field, const char* what) const {
    if (!is_whole(field, 0x1p53)) refuse(field, std::string("a whole number >= 0 as ") + what);
    return static_cast<std::int64_t>(fields_[field]);
  }

  bool flag(std::int64_t field, const char* what) const {
    if (!is_whole(field, 1)) refuse(field, std::string("0 or 1 as ") + what);
    return fields_[field] != 0;
  }

  // A format from its exponent bits and, in the next field, mantissa bits; 0 exponent bits: none.
  std::optional<FloatFormat> format(std::int64_t field) const {
    if (fields_[field] == 0) return std::nullopt;
    return FloatFormat(one_of<int>(field, 7, "number of exponent bits"),
                       one_of<int>(field + 1, 6, "number of mantissa bits"));
  }

  std::vector<SparsityAt> schedule() const {
    std::vector<SparsityAt> schedule;
    for (std::size_t i = 0; i < kMostSchedulePoints; ++i) {
      const std::int64_t field = kPlanSchedule + 2 * static_cast<std::int64_t>(i);
      if (fields_[field] < 0) break;
      schedule.push_back({count(field, "a call of the schedule"), fields_[field + 1]});
    }
    return schedule;
  }

 private:
  bool is_whole(std::int64_t field, double last) const {
    const double value = fields_[field];
    return value >= 0 && value <= last && value == std::floor(value);
  }
  [[noreturn]] void refuse(std::int64_t field, const std::string& expected) const {
    throw_invalid(op_, expected + " in " + name_, fields_[field]);
  }

  const double* fields_;
  std::string_view op_;
  const char* name_;
};

void write_in_force(const Treatment& treatment, double* plan) {
  plan[kPlanThreshold] = treatment.threshold;
  plan[kPlanDrops] = treatment.drops ? 1 : 0;
  const auto& quantizer = treatment.quantizer;
  plan[kPlanFormatExponent] = quantizer ? quantizer->format.exponent_bits() : 0;
  plan[kPlanFormatMantissa] = quantizer ? quantizer->format.mantissa_bits() : 0;
  plan[kPlanScale] = quantizer ? quantizer->scale : 0;
}

}  // namespace

std::vector<std::string> plan_field_names() {
  std::vector<std::string> names = {
      "min_elements", "sample_size",   "refresh_every", "warmup",     "prune",        "method",
      "bits",         "exponent_bits", "mantissa_bits", "split",      "scale_method", "rounding",
      "underflow",    "target",        "asked_scale",   "allocation", "dynamic_scale"};
  for (std::size_t i = 0; i < kMostSchedulePoints; ++i)
    for (const char* part : {"call", "sparsity"})
      names.push_back("schedule_" + std::string(part) + "_" + std::to_string(i));
  for (const char* name :
       {"seed_low", "seed_high", "calls", "due", "sparsity", "fixed_scale", "threshold", "drops",
        "format_exponent", "format_mantissa", "scale", "good_steps", "seen_calls"})
    names.push_back(name);
  return names;
}

GateState read_plan(const at::Tensor& tensor, std::string_view op, const char* name) {
  check_state(tensor, kPlanSize, op, name);
  const PlanReader plan(tensor, op, name);
  GateState gate;
  GateOptions& options = gate.options;
  options.seed = static_cast<std::uint64_t>(plan.count(kPlanSeedLow, "seed")) |
                 static_cast<std::uint64_t>(plan.count(kPlanSeedHigh, "seed")) << 32;
  options.min_elements = plan.count(kPlanMinElements, "min_elements");
  options.sample_size = plan.count(kPlanSampleSize, "sample size");
  options.refresh_every = plan.count(kPlanRefreshEvery, "refresh interval");
  options.warmup = plan.count(kPlanWarmup, "warm-up");
  options.schedule = plan.schedule();
  options.allocation = plan.one_of<AllocationObjective>(kPlanAllocation, 5, "allocation");
  options.dynamic_scale = plan.flag(kPlanDynamicScale, "dynamic scale");

  GradientSettings& settings = options.settings;
  settings.prune = plan.one_of<PruneKind>(kPlanPrune, 3, "prune kind");
  settings.method = plan.one_of<ThresholdMethod>(kPlanMethod, 4, "threshold method");
  settings.sparsity = plan.number(kPlanSparsity);
  settings.bits = plan.one_of<int>(kPlanBits, 8, "number of bits");
  settings.format = plan.format(kPlanExponentBits);
  settings.split = plan.one_of<SplitMethod>(kPlanSplit, 2, "split method");
  settings.scale_method = plan.one_of<ScaleMethod>(kPlanScaleMethod, 2, "scale method");
  settings.fixed_scale = plan.number(kPlanFixedScale);
  settings.rounding = plan.one_of<Rounding>(kPlanRounding, 1, "rounding");
  settings.underflow = plan.one_of<Underflow>(kPlanUnderflow, 1, "underflow");

  gate.calls = plan.count(kPlanCalls, "calls");
  gate.due = plan.flag(kPlanDue, "due");
  gate.target = plan.number(kPlanTarget);
  gate.asked_scale = plan.number(kPlanAskedScale);
  gate.good_steps = plan.count(kPlanGoodSteps, "good steps");
  gate.seen_calls = plan.count(kPlanSeenCalls, "calls seen");
  gate.in_force.threshold = plan.number(kPlanThreshold);
  gate.in_force.drops = plan.flag(kPlanDrops, "drops");
  if (const auto format = plan.format(kPlanFormatExponent))
    gate.in_force.quantizer =
        Quantizer{*format, plan.number(kPlanScale), settings.rounding, settings.underflow};
  check_gate_state(gate, op);
  return gate;
}

void write_plan(const GateState& gate, const at::Tensor& tensor) {
  double* plan = tensor.mutable_data_ptr<double>();
  const GateOptions& options = gate.options;
  plan[kPlanSeedLow] = static_cast<double>(*options.seed & 0xffffffffu);
  plan[kPlanSeedHigh] = static_cast<double>(*options.seed >> 32);
  plan[kPlanMinElements] = static_cast<double>(options.min_elements);
  plan[kPlanSampleSize] = static_cast<double>(options.sample_size);
  plan[kPlanRefreshEvery] = static_cast<double>(options.refresh_every);
  plan[kPlanWarmup] = static_cast<double>(options.warmup);
  for (std::size_t i = 0; i < kMostSchedulePoints; ++i) {
    const bool used = i < options.schedule.size();
    plan[kPlanSchedule + 2 * i] = used ? static_cast<double>(options.schedule[i].call) : -1;
    plan[kPlanSchedule + 2 * i + 1] = used ? options.schedule[i].sparsity : -1;
  }

  plan[kPlanAllocation] = static_cast<double>(options.allocation);
  plan[kPlanDynamicScale] = options.dynamic_scale ? 1 : 0;

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
  plan[kPlanAskedScale] = gate.asked_scale;
  plan[kPlanGoodSteps] = static_cast<double>(gate.good_steps);
  plan[kPlanSeenCalls] = static_cast<double>(gate.seen_calls);
  write_in_force(gate.in_force, plan);
}

bool has_values(const at::Tensor& x, const at::Tensor& state) {
  if (!state.defined()) return true;
  return !at::isTensorSubclassLike(state) && !(x.is_meta() && state.is_meta());
}

void check_gate(const at::Tensor& x, const at::Tensor& plan, const at::Tensor& stats,
                const char* op) {
  const auto lock = lock_plans();
  if (has_values(x, plan)) read_plan(plan, op);
  if (has_values(x, stats)) check_layer_stats(stats, op);
}

std::unique_lock<std::recursive_mutex> lock_plans() {
  static std::recursive_mutex mutex;
  return std::unique_lock(mutex);
}

GateState begin_pass(const at::Tensor& plan, const char* op, const char* name) {
  const auto lock = lock_plans();
  GateState gate = read_plan(plan, op, name);
  plan.mutable_data_ptr<double>()[kPlanCalls] = static_cast<double>(gate.calls + 1);
  return gate;
}

void end_pass(const GateState& gate, const at::Tensor& plan) {
  const auto lock = lock_plans();
  double* fields = plan.mutable_data_ptr<double>();
  // Without a schedule it is not ours, and set_sparsity may have written it meanwhile.
  if (!gate.options.schedule.empty()) fields[kPlanSparsity] = gate.options.settings.sparsity;
  fields[kPlanDue] = gate.due ? 1 : 0;
  write_in_force(gate.in_force, fields);
}

void check_layer_stats(const at::Tensor& stats, const char* op, const char* name) {
  check_state(stats, kLayerStatsSize, op, name);
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

at::Tensor new_gate_plan(GateOptions options, std::string_view op) {
  if (!options.seed) options.seed = torch_ops::fresh_seed();
  at::Tensor plan = at::zeros({torch_ops::kPlanSize}, at::kDouble);
  torch_ops::write_plan(new_gate(options, op), plan);
  torch_ops::read_plan(plan, op);
  return plan;
}

at::Tensor new_gate_stats() { return at::zeros({torch_ops::kLayerStatsSize}, at::kDouble); }

GateReport gate_report(const at::Tensor& plan, const at::Tensor& stats) {
  using namespace torch_ops;
  const auto lock = lock_plans();
  check_layer_stats(stats, "gate_report");
  const GateState gate = read_plan(plan, "gate_report");
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
