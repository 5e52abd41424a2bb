// Every field of a gate's state, once: its name, its range, and what it is. Visitors over the list
// make the rest: a plan as a tensor with its field names (torch/decide), the checks of ranges
// (gate.cc), the arguments of the op new_gate_plan, which settings a resumed gate has changed
// (resume_gate.cc), the options of slimgrad-train and the fields of run records (gate_settings()).
// The same for what a report keeps of a backward pass. The order is the layout of these tensors.
#ifndef SLIMGRAD_ARRAYS_DECIDE_GATE_FIELDS_H_
#define SLIMGRAD_ARRAYS_DECIDE_GATE_FIELDS_H_

#include <string>
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

enum class Range {
  kAny,
  kCount,      // >= 0
  kPositive,   // > 0
  kCalls,      // 0 to kMostCalls
  kShare,      // >= 0 and < 1
  kMagnitude,  // finite and >= 0
  kBits,       // 2 to 8, or 0 for none
};

// A setting as a command line and run records have it.
struct GateOption {
  const char* name = "";   // in records; empty: in neither. An option has hyphens instead.
  const char* help = "";   // without the choices of an enumeration, which follow
  const char* other = "";  // what may be written instead of a value of the field
};

struct GateField {
  const char* name;
  const char* what;  // in errors
  Range range = Range::kAny;
  bool is_argument = false;  // for a new gate
  const char* setting = "";  // what a user calls it, if a resumed gate keeps its own; else it is
                             // state, and the saved one is taken over
  Follows follows = Follows::kNothing;
  GateOption option = {};

  constexpr GateField typed(const char* as, const char* help, const char* other = "") const {
    GateField field = *this;
    field.option = {as, help, other};
    return field;
  }
};

// Calls visit(field, value...) for each field, with its values in `gates`, one or several.
template <typename Visit, typename... Gates>
void visit_gate_fields(Visit&& visit, Gates&... gates) {
  using enum Follows;
  using enum Range;
  using F = GateField;
  visit(F{"min_elements", "min_elements", kCount, true, "min_elements"}.typed(
            "min_elements", "Leave gradients with fewer elements uncompressed"),
        gates.options.min_elements...);
  visit(F{"sample_size", "sample_size", kPositive, true, "sample", kTreatment},
        gates.options.sample_size...);
  visit(F{"refresh_every", "refresh_every", kCount, true, "refresh"}.typed(
            "refresh", "Choose threshold, format and scale anew every N steps",
            "epoch: once per epoch"),
        gates.options.refresh_every...);
  visit(F{"warmup", "warmup", kCount, true, "warmup"}.typed(
            "warmup", "Leave gradients uncompressed for the first N steps"),
        gates.options.warmup...);
  visit(F{"prune", "prune kind", kAny, true, "kind", kTreatment}.typed("prune", "How to prune"),
        gates.options.settings.prune...);
  visit(F{"method", "threshold method", kAny, true, "method", kTreatment}.typed(
            "threshold", "How the pruning threshold is found"),
        gates.options.settings.method...);
  // A dynamic loss scale was found on the grid of its format: on another one it begins anew.
  visit(F{"bits", "number of bits", kBits, true, "bits", kScale}, gates.options.settings.bits...);
  visit(F{"format", "format", kAny, true, "format", kScale}, gates.options.settings.format...);
  visit(F{"split", "split method", kAny, true, "split method", kTreatment}.typed(
            "split", "How bits become exponent and mantissa"),
        gates.options.settings.split...);
  visit(F{"scale_method", "scale method", kAny, true, "scale", kTreatment}.typed(
            "scale", "Scale of a format for each layer",
            "a loss scale for all: static:2^16, or dynamic:2^16[:STEPS], which doubles every "
            "STEPS steps"),
        gates.options.settings.scale_method...);
  visit(F{"rounding", "rounding", kAny, true, "rounding", kTreatment}.typed("rounding",
                                                                            "Rounding to a format"),
        gates.options.settings.rounding...);
  visit(F{"underflow", "underflow", kAny, true, "underflow", kTreatment}.typed(
            "underflow", "What becomes of magnitudes below a format's smallest"),
        gates.options.settings.underflow...);
  visit(F{"target", "target sparsity", kShare, false, "sparsity", kSparsity}, gates.target...);
  visit(F{"asked_scale", "asked scale", kMagnitude, false, "loss scale", kScale},
        gates.asked_scale...);
  visit(F{"allocation", "allocation", kAny, true, "allocation", kSparsity}.typed(
            "allocation", "How sparsity is distributed over layers"),
        gates.options.allocation...);
  visit(F{"dynamic_scale", "dynamic scale", kAny, true, "dynamic loss scale", kScale},
        gates.options.dynamic_scale...);
  visit(F{"schedule", "a call of the schedule", kAny, true, "schedule", kSparsity},
        gates.options.schedule...);

  visit(F{"seed", "seed", kAny, true}, gates.options.seed...);
  visit(F{"calls", "calls", kCalls}, gates.calls...);
  visit(F{"due", "due"}, gates.due...);
  // The two as they are now: a schedule, an allocation or a dynamic loss scale writes them.
  visit(F{"sparsity", "sparsity", kShare, true}, gates.options.settings.sparsity...);
  visit(F{"fixed_scale", "fixed scale", kMagnitude, true}, gates.options.settings.fixed_scale...);
  visit(F{"threshold", "threshold", kMagnitude}, gates.in_force.threshold...);
  visit(F{"drops", "drops"}, gates.in_force.drops...);
  visit(F{"quantizer", "quantizer"}, gates.in_force.quantizer...);
  visit(F{"good_steps", "good steps", kCalls}, gates.good_steps...);
  visit(F{"seen_calls", "calls seen", kCalls}, gates.seen_calls...);
}

// The fields that are options of a command line and of run records.
struct GateSetting {
  const char* field;
  GateOption option;
  std::vector<std::string> choices;  // of an enumeration
  std::string initially;             // its default, as text
  // Whether it is a number and nothing else, as records have it.
  bool is_number() const { return choices.empty() && *option.other == '\0'; }
};
const std::vector<GateSetting>& gate_settings();

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
