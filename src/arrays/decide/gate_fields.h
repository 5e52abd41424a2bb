// Every field of a gate's state, once: its name, and what it is. Visitors over the list make the
// rest: a plan as a tensor with its field names and range checks, the arguments of the op
// new_gate_plan (torch/decide), and which settings a resumed gate has changed (resume_gate.cc).
// The same for what a report keeps of a backward pass. The order is the layout of these tensors.
#ifndef SLIMGRAD_ARRAYS_DECIDE_GATE_FIELDS_H_
#define SLIMGRAD_ARRAYS_DECIDE_GATE_FIELDS_H_

#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <slimgrad/gate.h>

namespace slimgrad {

// The names of an enumeration: its values are those from 0 on that have one.
template <auto name_function, auto parse_function>
struct NamesOf {
  static constexpr auto name = name_function;
  static constexpr auto parse = parse_function;
};
template <typename Enum>
struct EnumNames;
template <>
struct EnumNames<PruneKind> : NamesOf<prune_kind_name, parse_prune_kind> {};
template <>
struct EnumNames<ThresholdMethod> : NamesOf<method_name, parse_threshold_method> {};
template <>
struct EnumNames<AllocationObjective> : NamesOf<objective_name, parse_allocation_objective> {};
template <>
struct EnumNames<SplitMethod> : NamesOf<split_method_name, parse_split_method> {};
template <>
struct EnumNames<ScaleMethod> : NamesOf<scale_method_name, parse_scale_method> {};
template <>
struct EnumNames<Rounding> : NamesOf<rounding_name, parse_rounding> {};
template <>
struct EnumNames<Underflow> : NamesOf<underflow_name, parse_underflow> {};

template <typename Enum>
bool is_value_of(int value) {
  return value >= 0 && EnumNames<Enum>::name(static_cast<Enum>(value)) != "?";
}

// What has to be found again where a saved gate has another setting.
enum class Follows { kSparsity, kScale, kTreatment, kNothing };

struct GateField {
  const char* name;
  const char* what;          // in errors
  bool is_option = false;    // an argument for a new gate
  const char* setting = "";  // what a user calls it, if a resumed gate keeps its own; else it is
                             // state, and the saved one is taken over
  Follows follows = Follows::kNothing;
};

// Calls visit(field, value...) for each field, with its values in `gates`, one or several.
template <typename Visit, typename... Gates>
void visit_gate_fields(Visit&& visit, Gates&... gates) {
  using enum Follows;
  visit(GateField{"min_elements", "min_elements", true, "min_elements"},
        gates.options.min_elements...);
  visit(GateField{"sample_size", "sample size", true, "sample", kTreatment},
        gates.options.sample_size...);
  visit(GateField{"refresh_every", "refresh interval", true, "refresh"},
        gates.options.refresh_every...);
  visit(GateField{"warmup", "warm-up", true, "warmup"}, gates.options.warmup...);
  visit(GateField{"prune", "prune kind", true, "kind", kTreatment},
        gates.options.settings.prune...);
  visit(GateField{"method", "threshold method", true, "method", kTreatment},
        gates.options.settings.method...);
  // A dynamic loss scale was found on the grid of its format: on another one it begins anew.
  visit(GateField{"bits", "number of bits", true, "bits", kScale}, gates.options.settings.bits...);
  visit(GateField{"format", "format", true, "format", kScale}, gates.options.settings.format...);
  visit(GateField{"split", "split method", true, "split method", kTreatment},
        gates.options.settings.split...);
  visit(GateField{"scale_method", "scale method", true, "scale", kTreatment},
        gates.options.settings.scale_method...);
  visit(GateField{"rounding", "rounding", true, "rounding", kTreatment},
        gates.options.settings.rounding...);
  visit(GateField{"underflow", "underflow", true, "underflow", kTreatment},
        gates.options.settings.underflow...);
  visit(GateField{"target", "target sparsity", false, "sparsity", kSparsity}, gates.target...);
  visit(GateField{"asked_scale", "asked scale", false, "loss scale", kScale}, gates.asked_scale...);
  visit(GateField{"allocation", "allocation", true, "allocation", kSparsity},
        gates.options.allocation...);
  visit(GateField{"dynamic_scale", "dynamic scale", true, "dynamic loss scale", kScale},
        gates.options.dynamic_scale...);
  visit(GateField{"schedule", "a call of the schedule", true, "schedule", kSparsity},
        gates.options.schedule...);

  visit(GateField{"seed", "seed", true}, gates.options.seed...);
  visit(GateField{"calls", "calls"}, gates.calls...);
  visit(GateField{"due", "due"}, gates.due...);
  // The two as they are now: a schedule, an allocation or a dynamic loss scale writes them.
  visit(GateField{"sparsity", "sparsity", true}, gates.options.settings.sparsity...);
  visit(GateField{"fixed_scale", "fixed scale", true}, gates.options.settings.fixed_scale...);
  visit(GateField{"threshold", "threshold"}, gates.in_force.threshold...);
  visit(GateField{"drops", "drops"}, gates.in_force.drops...);
  visit(GateField{"quantizer", "quantizer"}, gates.in_force.quantizer...);
  visit(GateField{"good_steps", "good steps"}, gates.good_steps...);
  visit(GateField{"seen_calls", "calls seen"}, gates.seen_calls...);
}

// The names that may be given for a field that is an enumeration; none for other fields.
inline std::vector<std::string> choices_of(std::string_view field_name) {
  std::vector<std::string> names;
  GateState gate;
  visit_gate_fields(
      [&]<typename T>(const GateField& field, T&) {
        if constexpr (std::is_enum_v<T>)
          for (int i = 0; field.name == field_name && is_value_of<T>(i); ++i)
            names.emplace_back(EnumNames<T>::name(static_cast<T>(i)));
      },
      gate);
  return names;
}

// What a report says of the last backward pass itself; the rest of it is in the gate's state.
struct ReportField {
  const char* name;
  const char* what = "";  // in errors; empty: a quotient of what the gradient happened to be, which
                          // may be any number, and nothing is decided by it
};

template <typename Visit, typename... Reports>
void visit_report_fields(Visit&& visit, Reports&... reports) {
  visit(ReportField{"elements", "a number of elements passed"}, reports.elements...);
  visit(ReportField{"sparsity_wanted", "a wanted sparsity from 0 to 1"},
        reports.sparsity_wanted...);
  visit(ReportField{"sparsity", "a sparsity from 0 to 1"}, reports.sparsity...);
  visit(ReportField{"at_threshold", "a fraction at the threshold from 0 to 1"},
        reports.at_threshold...);
  visit(ReportField{"cosine"}, reports.cosine...);
  visit(ReportField{"relative_error"}, reports.relative_error...);
  visit(ReportField{"nonfinite", "a number of NaN and Inf passed"}, reports.nonfinite...);
  visit(ReportField{"compressed", "0 or 1 as compressed"}, reports.compressed...);
  visit(ReportField{"saturated", "0 or 1 as saturated"}, reports.saturated...);
  visit(ReportField{"bias"}, reports.bias...);
}

}  // namespace slimgrad

#endif  // SLIMGRAD_ARRAYS_DECIDE_GATE_FIELDS_H_
