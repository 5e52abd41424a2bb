// torch.classes.slimgrad.GateGroup: a group of gates as Python holds it. In graphs of
// torch.compile, where no method of an object can be called, the op enter_gate_ does what enter()
// does. It gets a handle of the gate, an int64 tensor with its number, and not its name, on which
// dynamo would specialize: layers of one class share a graph. Nor plans: the group changes those of
// all gates, and a graph that has kept one for backward must see what was written since.
#include <ATen/ops/full.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <cmath>
#include <mutex>
#include <utility>

#include <slimgrad/gate_group.h>

#include "arrays/decide/gate_fields.h"
#include "base/check.h"
#include "runtime/decide/state_tensors.h"
#include "torch/decide/plan_tensor.h"
#include "torch/decide/state_place.h"
#include "torch/errors.h"
#include "torch/no_gradient.h"

namespace slimgrad {
namespace {

using Numbers = c10::Dict<std::string, double>;
using Tensors = c10::Dict<std::string, at::Tensor>;
using Row = c10::impl::GenericDict;

Row new_row() { return Row(c10::StringType::get(), c10::AnyType::get()); }

template <typename T>
std::map<std::string, T> map_of(const c10::Dict<std::string, T>& dict) {
  std::map<std::string, T> map;
  for (const auto& item : dict) map[item.key()] = item.value();
  return map;
}

c10::IValue none_if(bool is_none, c10::IValue value) { return is_none ? c10::IValue() : value; }

// How a product of a sparse layer is done.
Row way_of(const SparseProductReport& product) {
  Row row = new_row();
  const std::string_view by = chosen_by_name(product.chosen_by);
  row.insert("way", product.was_sparse ? "sparse" : "dense");
  row.insert("break_even", none_if(std::isnan(product.break_even), product.break_even));
  row.insert("chosen_by", none_if(by.empty(), std::string(by)));
  row.insert("setting", std::string(sparse_way_name(product.setting)));
  if (product.trials == 0) return row;
  row.insert("trials", product.trials);
  row.insert("dense_seconds", product.dense_seconds);
  row.insert("compress_seconds", product.compress_seconds);
  row.insert("multiply_seconds", product.multiply_seconds);
  return row;
}

// A report as plain numbers.
Row row_of(const NamedReport& report) {
  Row row = new_row();
  const GateReport& gate = report.gate;
  row.insert("calls", gate.calls);
  visit_report_fields(
      [&](const ReportField& field, const auto& value) { row.insert(field.name, value); }, gate);
  row.insert("log_std", gate.log_std);
  row.insert("threshold", gate.threshold);
  row.insert("bits_per_value", bits_per_value(gate));
  const auto& quantizer = gate.quantizer;
  row.insert("scale", none_if(!quantizer, quantizer ? quantizer->scale : 0));
  row.insert("format", none_if(!quantizer, quantizer ? quantizer->format.name() : ""));
  if (report.product)
    for (const auto& item : way_of(*report.product)) row.insert(item.key(), item.value());
  return row;
}

class Group : public torch::CustomClassHolder {
 public:
  Group(const std::string& allocation, const std::string& method, double cap,
        const Numbers& targets, std::int64_t growth_interval, const Numbers& others)
      : gates({parse_allocation_objective(allocation), parse_threshold_method(method), cap,
               map_of(targets), growth_interval, map_of(others)}) {}

  GateGroup gates;
};
using GroupPtr = c10::intrusive_ptr<Group>;

Row report(const GateGroup& gates, bool all) {
  Row rows = new_row();
  for (const NamedReport& report : gates.reports())
    if (report.counts || all) rows.insert(report.name, row_of(report));
  return rows;
}

Row ways(const GateGroup& gates) {
  Row rows = new_row();
  for (const NamedReport& report : gates.reports())
    if (report.product) rows.insert(report.name, way_of(*report.product));
  return rows;
}

Tensors state(const GateGroup& gates) {
  Tensors state;
  for (const auto& [name, tensor] : state_tensors(gates)) state.insert(name, tensor);
  return state;
}

Row load_state(GateGroup& gates, const Tensors& saved) {
  const LoadedState said = load_state_tensors(gates, map_of(saved));
  Row differences = new_row(), all = new_row();
  for (const auto& [words, names] : said.differences) differences.insert(words, names);
  all.insert("differences", differences);
  all.insert("settings", said.settings);
  all.insert("missing", said.missing);
  all.insert("unknown", said.unknown);
  return all;
}

// What a plan holds, by the names of its fields.
Numbers fields_of(const at::Tensor& plan) {
  const auto lock = torch_ops::lock_plans();
  torch_ops::read_plan(plan, "fields");
  const at::Tensor here = torch_ops::on_host(plan);
  Numbers fields;
  const double* next = here.const_data_ptr<double>();
  for (const std::string& name : torch_ops::plan_field_names()) fields.insert(name, *next++);
  return fields;
}

// The statistics that the last backward pass took.
at::Tensor statistics_of(const at::Tensor& stats) {
  const auto lock = torch_ops::lock_plans();
  torch_ops::check_layer_stats(stats, "statistics");
  return torch_ops::on_host(stats).slice(0, 0, kStatsTensorSize).clone();
}

// For graphs of torch.compile, which are traced with tensors that stand for others: before the
// state of a gate is looked at.
void bring_state(const at::Tensor& plan, const at::Tensor& stats, const std::string& device) {
  torch_ops::bring_state_to(c10::Device(device), plan, stats, "gradient_gate");
}

// The names that may be given for a field of a gate.
std::vector<std::string> choices_of(const std::string& field) {
  for (const GateSetting& setting : gate_settings())
    if (setting.field == field) return setting.choices;
  return {};
}

// What run records call the fields of a gate.
c10::Dict<std::string, std::string> option_names() {
  c10::Dict<std::string, std::string> names;
  for (const GateSetting& setting : gate_settings())
    names.insert(setting.field, setting.option.name);
  return names;
}

// function(gates, arguments...) as a method, with the errors of ops.
template <typename... Arguments, typename Function>
auto method(Function function) {
  return [function](const GroupPtr& self, Arguments... arguments) {
    return torch_ops::value_errors([&] { return function(self->gates, arguments...); });
  };
}

using Text = const std::string&;
using TensorHandle = const at::Tensor&;

// ---- handles -----------------------------------------------------------------------------------

struct Handle {
  c10::weak_intrusive_ptr<Group> group;
  std::string gate;
};
struct Handles {
  std::mutex mutex;
  std::vector<Handle> all;
};
Handles& handles() {
  static Handles handles;
  return handles;
}

at::Tensor handle_of(const GroupPtr& self, std::string gate) {
  const std::lock_guard lock(handles().mutex);
  handles().all.push_back({c10::weak_intrusive_ptr<Group>(self), std::move(gate)});
  return at::full({1}, static_cast<std::int64_t>(handles().all.size() - 1), at::kLong);
}

void enter_gate(const at::Tensor& gate) {
  check(gate.scalar_type() == at::kLong && gate.numel() == 1 && gate.device().is_cpu(),
        "enter_gate_", "the handle of a gate", gate.toString());
  // A part that is checkpointed is entered again inside backward.
  if (torch::autograd::get_current_graph_task_id() != -1) return;
  const auto number = static_cast<std::size_t>(*gate.const_data_ptr<std::int64_t>());
  GroupPtr group;
  std::string name;
  {
    const std::lock_guard lock(handles().mutex);
    check(number < handles().all.size(), "enter_gate_", "the handle of a gate", number);
    group = handles().all[number].group.lock();
    name = handles().all[number].gate;
  }
  if (group) group->gates.enter(name);
}

}  // namespace

TORCH_LIBRARY_IMPL(slimgrad, CPU, m) {
  m.impl("enter_gate_", torch_ops::ValueErrors<&enter_gate>::call);
}
TORCH_LIBRARY_IMPL(slimgrad, Meta, m) {
  m.impl("enter_gate_", [](const at::Tensor&) {});
}
TORCH_LIBRARY_IMPL(slimgrad, Autograd, m) { m.impl("enter_gate_", torch_ops::no_gradient()); }

TORCH_LIBRARY_FRAGMENT(slimgrad, m) {
  using G = GateGroup;
  using State = std::vector<at::Tensor>;
  m.class_<Group>("GateGroup")
      .def(torch::init<std::string, std::string, double, Numbers, std::int64_t, Numbers>())
      .def("add_gate", method<Text, TensorHandle, TensorHandle>(
                           [](G& gates, Text name, TensorHandle plan, TensorHandle stats) {
                             gates.add(name, plan, stats);
                           }))
      .def("add_layer", method<Text, State>([](G& gates, Text name, const State& state) {
             gates.add(name, SparseLayerState::from_list(state, "GateGroup"));
           }))
      .def("names", method<>([](G& gates) { return gates.names(); }))
      .def("enter", method<Text>([](G& gates, Text name) { gates.enter(name); }))
      .def("handle", &handle_of)
      .def("refresh", method<>([](G& gates) { gates.refresh(); }))
      .def("set_sparsity", method<double, Text>([](G& gates, double sparsity, Text product) {
             gates.set_sparsity(sparsity, product);
           }))
      .def("set_ways", method<Text, Text>([](G& gates, Text way, Text product) {
             gates.set_ways(parse_sparse_way(way), product);
           }))
      .def("time_ways", method<bool>([](G& gates, bool on) { gates.time_ways(on); }))
      .def("report",
           method<bool>([](G& gates, bool all) { return c10::IValue(report(gates, all)); }))
      .def("ways", method<>([](G& gates) { return c10::IValue(ways(gates)); }))
      .def("warnings", method<>([](G& gates) { return gates.warnings(); }))
      .def("state", method<>(state))
      .def("load_state", method<Tensors>([](G& gates, const Tensors& saved) {
             return c10::IValue(load_state(gates, saved));
           }))
      .def_static("fields", torch_ops::ValueErrors<&fields_of>::call)
      .def_static("bring_state", torch_ops::ValueErrors<&bring_state>::call)
      .def_static("statistics", torch_ops::ValueErrors<&statistics_of>::call)
      .def_static("choices", choices_of)
      .def_static("option_names", option_names);
}

}  // namespace slimgrad
