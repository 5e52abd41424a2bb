// new_gate_plan with the options of a gate by name: the holder of its tensors (Python) knows
// neither their layout nor a default. And derive_seed.
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include <slimgrad/gradient_gate.h>
#include <slimgrad/seed.h>

#include "arrays/decide/gate_fields.h"
#include "base/check.h"
#include "torch/decide/plan_tensor.h"
#include "torch/errors.h"

namespace slimgrad::torch_ops {
namespace {

constexpr const char* kCompress = "compress";  // Python's only way here

// The two visitors of gate_fields.h that make the op: its schema, and options from its arguments.
struct PlanSchema {
  template <typename T>
  void operator()(const GateField& field, const T&) {
    if (!field.is_argument) return;
    if constexpr (std::is_enum_v<T>)
      add("str", field.name);
    else if constexpr (std::is_same_v<T, bool>)
      add("bool", field.name);
    else if constexpr (std::is_same_v<T, double>)
      add("float", field.name);
    else
      add("int", field.name);
  }
  void operator()(const GateField&, const std::optional<FloatFormat>&) {
    add("int", "exponent_bits");
    add("int", "mantissa_bits");
  }
  void operator()(const GateField&, const std::vector<SparsityAt>&) {
    text += ", int[] schedule_calls=[], float[] schedule_sparsities=[]";
  }

  void add(const char* type, const char* name) {
    text += std::string(", ") + type + "? " + name + "=None";
  }
  std::string text = "new_gate_plan(*";
};

class PlanArguments {
 public:
  explicit PlanArguments(const c10::IValue* next) : next_(next) {}

  template <typename T>
  void operator()(const GateField& field, T& value) {
    if (!field.is_argument) return;
    const c10::IValue& given = *next_++;
    if (given.isNone()) return;
    if constexpr (std::is_enum_v<T>)
      value = EnumNames<T>::parse(given.toStringRef());
    else if constexpr (std::is_same_v<T, bool>)
      value = given.toBool();
    else if constexpr (std::is_same_v<T, double>)
      value = given.toDouble();
    else
      value = static_cast<T>(given.toInt());
  }
  void operator()(const GateField&, std::optional<Quantizer>&) {}  // no option
  void operator()(const GateField&, std::optional<std::uint64_t>& seed) {
    const c10::IValue& given = *next_++;
    if (!given.isNone()) seed = static_cast<std::uint64_t>(given.toInt());
  }
  void operator()(const GateField&, std::optional<FloatFormat>& format) {
    const c10::IValue &exponent_bits = *next_++, &mantissa_bits = *next_++;
    if (exponent_bits.isNone()) return;
    format = FloatFormat(static_cast<int>(exponent_bits.toInt()),
                         mantissa_bits.isNone() ? 0 : static_cast<int>(mantissa_bits.toInt()));
  }
  void operator()(const GateField&, std::vector<SparsityAt>& schedule) {
    const std::vector<std::int64_t> calls = (next_++)->toIntVector();
    const std::vector<double> sparsities = (next_++)->toDoubleVector();
    check(calls.size() == sparsities.size(), kCompress, "a sparsity for every call of the schedule",
          sparsities.size());
    for (std::size_t i = 0; i < calls.size(); ++i) schedule.push_back({calls[i], sparsities[i]});
  }

 private:
  const c10::IValue* next_;
};

at::Tensor plan_of(const c10::IValue* arguments) {
  GateState gate;
  visit_gate_fields(PlanArguments(arguments), gate);
  GradientSettings& settings = gate.options.settings;
  if (settings.format) settings.bits = settings.format->bits();
  return new_gate_plan(gate.options, kCompress);
}

void new_gate_plan_op(const c10::OperatorHandle& op, c10::Stack* stack) {
  const std::size_t num_arguments = op.schema().arguments().size();
  at::Tensor plan = ValueErrors<&plan_of>::call(stack->data() + (stack->size() - num_arguments));
  stack->resize(stack->size() - num_arguments);
  stack->emplace_back(std::move(plan));
}

// The parts of derive_seed(), names before numbers.
std::int64_t derive_seed_op(std::int64_t seed, const c10::List<std::string>& names,
                            at::IntArrayRef numbers) {
  auto derived = static_cast<std::uint64_t>(seed);
  for (const std::string& name : names) derived = derive_seed(derived, {std::string_view(name)});
  for (const std::int64_t number : numbers) derived = derive_seed(derived, {number});
  return static_cast<std::int64_t>(derived);
}

}  // namespace

std::string new_gate_plan_schema() {
  PlanSchema schema;
  const GateState gate;
  visit_gate_fields(schema, gate);
  return schema.text + ") -> Tensor";
}

TORCH_LIBRARY_IMPL(slimgrad, CompositeExplicitAutograd, m) {
  m.impl("new_gate_plan", torch::CppFunction::makeFromBoxedFunction<&new_gate_plan_op>());
  m.impl("new_gate_stats", new_gate_stats);
  m.impl("derive_seed", derive_seed_op);
}

}  // namespace slimgrad::torch_ops
