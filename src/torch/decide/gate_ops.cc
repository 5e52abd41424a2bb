// The state of a gate, made, read and changed by name: the holder of its tensors (Python) knows
// neither their layout nor a default.
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <slimgrad/gradient_gate.h>
#include <slimgrad/seed.h>
#include <slimgrad/threshold.h>

#include "base/check.h"
#include "torch/decide/plan_tensor.h"
#include "torch/errors.h"
#include "torch/no_gradient.h"

namespace slimgrad::torch_ops {
namespace {

using Name = std::optional<std::string_view>;
using Number = std::optional<double>;
using Count = std::optional<std::int64_t>;

template <typename To, typename From>
void set_if(To& to, const std::optional<From>& from) {
  if (from) to = static_cast<To>(*from);
}

// What is not given has the default of GateOptions.
at::Tensor make_gate_plan(Name prune, Number sparsity, Name method, Count bits, Count exponent_bits,
                          Count mantissa_bits, Name split, Name scale_method, Number fixed_scale,
                          Name rounding, Name underflow, Count seed, Count min_elements,
                          Count sample_size, Count refresh_every, Count warmup,
                          at::IntArrayRef schedule_calls, at::ArrayRef<double> schedule_sparsities,
                          Name allocation, bool dynamic_scale) {
  constexpr const char* kOp = "compress";  // Python's only way here
  GateOptions options;
  GradientSettings& settings = options.settings;
  if (prune) settings.prune = parse_prune_kind(*prune);
  set_if(settings.sparsity, sparsity);
  if (method) settings.method = parse_threshold_method(*method);
  set_if(settings.bits, bits);
  if (exponent_bits) {
    settings.format =
        FloatFormat(static_cast<int>(*exponent_bits), static_cast<int>(mantissa_bits.value_or(0)));
    settings.bits = settings.format->bits();
  }
  if (split) settings.split = parse_split_method(*split);
  if (scale_method) settings.scale_method = parse_scale_method(*scale_method);
  set_if(settings.fixed_scale, fixed_scale);
  if (rounding) settings.rounding = parse_rounding(*rounding);
  if (underflow) settings.underflow = parse_underflow(*underflow);
  if (seed) options.seed = static_cast<std::uint64_t>(*seed);
  set_if(options.min_elements, min_elements);
  set_if(options.sample_size, sample_size);
  set_if(options.refresh_every, refresh_every);
  set_if(options.warmup, warmup);
  if (allocation) options.allocation = parse_allocation_objective(*allocation);
  options.dynamic_scale = dynamic_scale;
  check(schedule_calls.size() == schedule_sparsities.size(), kOp,
        "a sparsity for every call of the schedule", schedule_sparsities.size());
  for (std::size_t i = 0; i < schedule_calls.size(); ++i)
    options.schedule.push_back({schedule_calls[i], schedule_sparsities[i]});
  return new_gate_plan(options, kOp);
}

using Names = std::vector<std::string>;
using Report = std::tuple<Names, std::vector<std::int64_t>, Names, c10::List<bool>, Names,
                          std::vector<double>, std::string>;

Report read_report(const at::Tensor& plan, const at::Tensor& stats) {
  const GateReport r = gate_report(plan, stats);
  return {{"calls", "elements", "nonfinite"},
          {r.calls, r.elements, r.nonfinite},
          {"compressed", "saturated"},
          c10::List<bool>({r.compressed, r.saturated}),
          {"log_std", "sparsity_wanted", "sparsity", "at_threshold", "cosine", "relative_error",
           "bias", "threshold", "bits_per_value", "scale"},
          {r.log_std, r.sparsity_wanted, r.sparsity, r.at_threshold, r.cosine, r.relative_error,
           r.bias, r.threshold, bits_per_value(r), r.quantizer ? r.quantizer->scale : 0},
          r.quantizer ? r.quantizer->format.name() : ""};
}

at::Tensor gate_statistics(const at::Tensor& stats) {
  const auto lock = lock_plans();
  check_layer_stats(stats, "gate_statistics");
  return stats.slice(0, 0, kStatsTensorSize).clone();
}

// change(gate) on the state behind a plan.
template <typename Change>
void change_gate(const at::Tensor& plan, const char* op, const Change& change) {
  const auto lock = lock_plans();
  GateState gate = read_plan(plan, op);
  change(gate);
  write_plan(gate, plan);
}

void refresh_gate(at::Tensor plan) {
  change_gate(plan, "refresh_gate_", [](GateState& gate) { gate.due = true; });
}
void set_gate_sparsity(at::Tensor plan, double sparsity) {
  change_gate(plan, "set_gate_sparsity_", [&](GateState& gate) { set_sparsity(gate, sparsity); });
}

std::tuple<Names, std::vector<double>> gate_fields(const at::Tensor& plan) {
  const auto lock = lock_plans();
  read_plan(plan, "gate_fields");
  const double* values = plan.const_data_ptr<double>();
  const auto names = plan_field_names();
  return {names, std::vector<double>(values, values + names.size())};
}

bool gate_has_news(const at::Tensor& plan) {
  const auto lock = lock_plans();
  return has_news(read_plan(plan, "gate_has_news"));
}

// The parts of derive_seed(), names before numbers.
std::int64_t derive_seed_op(std::int64_t seed, const c10::List<std::string>& names,
                            at::IntArrayRef numbers) {
  auto derived = static_cast<std::uint64_t>(seed);
  for (const std::string& name : names) derived = derive_seed(derived, {std::string_view(name)});
  for (const std::int64_t number : numbers) derived = derive_seed(derived, {number});
  return static_cast<std::int64_t>(derived);
}

template <typename Enum>
Names names_of(std::string_view (*name)(Enum)) {
  Names names;
  for (int i = 0; name(static_cast<Enum>(i)) != "?"; ++i)
    names.emplace_back(name(static_cast<Enum>(i)));
  return names;
}

// What may be asked for, by the name of the argument.
Names choices(std::string_view what) {
  if (what == "kind") return names_of(prune_kind_name);
  if (what == "threshold method") return names_of(method_name);
  if (what == "allocation") return names_of(objective_name);
  if (what == "split method") return names_of(split_method_name);
  if (what == "scale") return names_of(scale_method_name);
  if (what == "rounding") return names_of(rounding_name);
  if (what == "underflow") return names_of(underflow_name);
  throw_invalid("choices",
                "kind, threshold method, allocation, split method, scale, rounding or underflow",
                what);
}

}  // namespace

TORCH_LIBRARY_IMPL(slimgrad, CompositeExplicitAutograd, m) {
  m.impl("new_gate_plan", ValueErrors<&make_gate_plan>::call);
  m.impl("new_gate_stats", new_gate_stats);
  m.impl("gate_report", ValueErrors<&read_report>::call);
  m.impl("gate_statistics", ValueErrors<&gate_statistics>::call);
  m.impl("gate_fields", ValueErrors<&gate_fields>::call);
  m.impl("gate_has_news", ValueErrors<&gate_has_news>::call);
  m.impl("derive_seed", derive_seed_op);
  m.impl("choices", ValueErrors<&choices>::call);
  m.impl("refresh_gate_", ValueErrors<&refresh_gate>::call);
  m.impl("set_gate_sparsity_", ValueErrors<&set_gate_sparsity>::call);
}
TORCH_LIBRARY_IMPL(slimgrad, Autograd, m) {
  for (const char* name : {"gate_report", "gate_statistics", "gate_fields", "gate_has_news",
                           "refresh_gate_", "set_gate_sparsity_"})
    m.impl(name, no_gradient());
}

}  // namespace slimgrad::torch_ops
