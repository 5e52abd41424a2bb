#include "torch/decide/plan_tensor.h"

#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "arrays/decide/gate_fields.h"
#include "base/check.h"
#include "torch/checks.h"
#include "torch/decide/state_place.h"
#include "torch/fresh_seed.h"

namespace slimgrad::torch_ops {
namespace {

constexpr double kMostWhole = 0x1p53;  // that a float64 holds

bool is_whole(double value, double last = kMostWhole) {
  return value >= 0 && value <= last && value == std::floor(value);
}

// The visitors of gate_fields.h that make a plan. Most fields are one number; a format is two,
// which are 0 if there is none, a quantizer a format and its scale, a seed its halves, because a
// float64 holds 53 bits, and a schedule pairs of which unused ones hold -1.
template <typename T>
concept OneNumber = std::is_arithmetic_v<T> || std::is_enum_v<T>;

class PlanWriter {
 public:
  explicit PlanWriter(double* next) : next_(next) {}

  void operator()(const GateField&, const OneNumber auto& value) { put(value); }
  void operator()(const GateField&, const std::optional<FloatFormat>& format) {
    put(format ? format->exponent_bits() : 0);
    put(format ? format->mantissa_bits() : 0);
  }
  void operator()(const GateField& field, const std::optional<Quantizer>& quantizer) {
    (*this)(field, quantizer ? std::optional(quantizer->format) : std::nullopt);
    put(quantizer ? quantizer->scale : 0);
  }
  void operator()(const GateField&, const std::optional<std::uint64_t>& seed) {
    put(*seed & 0xffffffffu);
    put(*seed >> 32);
  }
  void operator()(const GateField&, const std::vector<SparsityAt>& schedule) {
    for (std::size_t i = 0; i < kMostSchedulePoints; ++i) {
      const bool is_used = i < schedule.size();
      put(is_used ? static_cast<double>(schedule[i].call) : -1);
      put(is_used ? schedule[i].sparsity : -1);
    }
  }

 private:
  void put(auto value) { *next_++ = static_cast<double>(value); }

  double* next_;
};

// Refuses values that PlanWriter does not write.
class PlanReader {
 public:
  PlanReader(const double* next, std::string_view op, const char* name)
      : next_(next), op_(op), name_(name) {}

  void operator()(const GateField&, double& value) { value = *next_++; }
  void operator()(const GateField& field, std::int64_t& value) { value = count(field.what); }
  void operator()(const GateField& field, bool& value) {
    value = whole(1, "0 or 1 as ", field.what) != 0;
  }
  void operator()(const GateField& field, int& bits) { bits = small(field.what); }
  template <typename Enum>
  requires std::is_enum_v<Enum>
  void operator()(const GateField& field, Enum& value) {
    const double given = *next_;
    value = static_cast<Enum>(small(field.what));
    if (!is_value_of<Enum>(static_cast<int>(value))) refuse("a valid ", field.what, given);
  }
  void operator()(const GateField&, std::optional<FloatFormat>& format) { format = read_format(); }
  void operator()(const GateField&, std::optional<Quantizer>& quantizer) {
    const auto format = read_format();
    quantizer.reset();
    if (format) quantizer = Quantizer{*format, *next_, {}, {}};
    ++next_;
  }
  void operator()(const GateField& field, std::optional<std::uint64_t>& seed) {
    const auto low = static_cast<std::uint64_t>(count(field.what));
    seed = low | static_cast<std::uint64_t>(count(field.what)) << 32;
  }
  void operator()(const GateField& field, std::vector<SparsityAt>& schedule) {
    const double* const end = next_ + 2 * kMostSchedulePoints;
    schedule.clear();
    while (next_ != end && !(*next_ < 0)) {
      const std::int64_t call = count(field.what);
      schedule.push_back({call, *next_++});
    }
    next_ = end;
  }

 private:
  double whole(double last, const char* expected, const char* what) {
    if (!is_whole(*next_, last)) refuse(expected, what, *next_);
    return *next_++;
  }
  std::int64_t count(const char* what) {
    return static_cast<std::int64_t>(whole(kMostWhole, "a whole number >= 0 as ", what));
  }
  int small(const char* what) {
    return static_cast<int>(whole(std::numeric_limits<int>::max(), "a valid ", what));
  }
  std::optional<FloatFormat> read_format() {
    if (*next_ == 0) {
      next_ += 2;
      return std::nullopt;
    }
    const int exponent_bits = small("number of exponent bits");
    const int mantissa_bits = small("number of mantissa bits");
    try {
      return FloatFormat(exponent_bits, mantissa_bits);
    } catch (const InvalidArgument&) {
      refuse("a valid ", "format", exponent_bits, " and ", mantissa_bits, " bits");
    }
  }
  [[noreturn]] void refuse(std::string expected, const char* what, const auto&... got) const {
    throw_invalid(op_, expected + what + " in " + name_, got...);
  }

  const double* next_;
  std::string_view op_;
  const char* name_;
};

struct PlanNames {
  void operator()(const GateField& field, const OneNumber auto&) { names.push_back(field.name); }
  void operator()(const GateField&, const std::optional<FloatFormat>&) {
    names.insert(names.end(), {"exponent_bits", "mantissa_bits"});
  }
  void operator()(const GateField&, const std::optional<Quantizer>&) {
    names.insert(names.end(), {"format_exponent", "format_mantissa", "scale"});
  }
  void operator()(const GateField&, const std::optional<std::uint64_t>&) {
    names.insert(names.end(), {"seed_low", "seed_high"});
  }
  void operator()(const GateField&, const std::vector<SparsityAt>&) {
    for (std::size_t i = 0; i < kMostSchedulePoints; ++i)
      for (const char* part : {"call", "sparsity"})
        names.push_back("schedule_" + std::string(part) + "_" + std::to_string(i));
  }

  std::vector<std::string> names;
};

void write_report(const GateReport& report, double* next) {
  visit_report_fields(
      [&](const ReportField&, const auto& value) { *next++ = static_cast<double>(value); }, report);
}

GateReport read_report(const double* next) {
  GateReport report;
  visit_report_fields(
      [&]<typename T>(const ReportField&, T& value) { value = static_cast<T>(*next++); }, report);
  return report;
}

}  // namespace

const std::vector<std::string>& plan_field_names() {
  static const std::vector<std::string> names = [] {
    PlanNames visitor;
    const GateState gate;
    visit_gate_fields(visitor, gate);
    return visitor.names;
  }();
  return names;
}

std::int64_t plan_size() { return static_cast<std::int64_t>(plan_field_names().size()); }

std::int64_t layer_stats_size() {
  static const std::int64_t size = [] {
    std::int64_t fields = 0;
    const GateReport report;
    visit_report_fields([&](const ReportField&, const auto&) { ++fields; }, report);
    return kStatsTensorSize + fields;
  }();
  return size;
}

GateState read_plan(const at::Tensor& given, std::string_view op, const char* name) {
  const at::Tensor plan = on_host(given);
  check_state(plan, plan_size(), op, name);
  GateState gate;
  visit_gate_fields(PlanReader(plan.const_data_ptr<double>(), op, name), gate);
  if (auto& quantizer = gate.in_force.quantizer) {
    quantizer->rounding = gate.options.settings.rounding;
    quantizer->underflow = gate.options.settings.underflow;
  }
  check_gate_state(gate, op);
  return gate;
}

void write_plan(const GateState& gate, const at::Tensor& plan) {
  const at::Tensor here = is_on_device(plan) ? at::empty({plan_size()}, at::kDouble) : plan;
  visit_gate_fields(PlanWriter(here.mutable_data_ptr<double>()), gate);
  if (!here.is_same(plan)) plan.copy_(here);
}

bool has_values(const at::Tensor& x, const at::Tensor& state) {
  if (!state.defined()) return true;
  return !at::isTensorSubclassLike(state) && !(x.is_meta() && state.is_meta());
}

void check_gate(const at::Tensor& x, const at::Tensor& plan, const at::Tensor& stats,
                const char* op) {
  // What is on a device was looked at before it went there.
  if (is_on_device(plan) && is_on_device(stats)) {
    check_form(plan, plan_size(), op, "plan");
    return check_form(stats, layer_stats_size(), op, "stats");
  }
  const auto lock = lock_plans();
  if (has_values(x, plan)) read_plan(plan, op);
  if (has_values(x, stats)) check_layer_stats(stats, op);
}

std::unique_lock<std::recursive_mutex> lock_plans() {
  static std::recursive_mutex mutex;
  return std::unique_lock(mutex);
}

void check_layer_stats(const at::Tensor& stats, std::string_view op, const char* name) {
  if (is_on_device(stats)) return check_form(stats, layer_stats_size(), op, name);
  check_state(stats, layer_stats_size(), op, name);
}

void check_saved_stats(const at::Tensor& stats, std::string_view op, const char* name) {
  check_layer_stats(stats, op, name);
  const double* const fields = stats.const_data_ptr<double>();
  const auto require = [&](double value, const char* what, bool holds) {
    check(holds, op, "in " + std::string(name) + " " + what, value);
  };
  const auto whole = [&](double value, const char* what, double last = kMostWhole) {
    require(value, what, is_whole(value, last));
  };
  whole(fields[kCountField], "a number of elements");
  whole(fields[kZerosField], "a number of zeros among them", fields[kCountField]);
  whole(fields[kNonfiniteField], "a number of NaN and Inf among them", fields[kCountField]);
  const double zeros = fields[kZeroFractionField], log_mean = fields[kLogMeanField];
  require(zeros, "a fraction of zeros from 0 to 1", zeros >= 0 && zeros <= 1);
  require(log_mean, "a finite log_mean", std::isfinite(log_mean));
  for (const StatsField field : {kLogStdField, kMaxAbsField, kMeanAbsField, kMeanSquareField})
    require(fields[field], "finite magnitudes >= 0",
            fields[field] >= 0 && std::isfinite(fields[field]));
  for (std::int64_t bin = kStatsFields; bin < kStatsTensorSize; ++bin)
    whole(fields[bin], "whole numbers >= 0 as a histogram");
  const double* next = fields + kStatsTensorSize;
  const GateReport report;
  visit_report_fields(
      [&]<typename T>(const ReportField& field, const T&) {
        const double value = *next++;
        if constexpr (std::is_same_v<T, double>)
          require(value, field.what, *field.what == '\0' || (value >= 0 && value <= 1));
        else
          whole(value, field.what, std::is_same_v<T, bool> ? 1 : kMostWhole);
      },
      report);
  const GateReport found = read_report(fields + kStatsTensorSize);
  require(static_cast<double>(found.nonfinite), "a number of NaN and Inf passed",
          found.nonfinite <= found.elements);
}

TensorPass::TensorPass(const at::Tensor& plan, const at::Tensor& stats, std::int64_t num_values,
                       DType type, std::int64_t stream, const char* op, const std::string& product)
    : plan_(plan),
      stats_(stats),
      gate_([&] {
        check_layer_stats(stats, op, (product + "stats").c_str());
        const auto lock = lock_plans();
        GateState gate = read_plan(plan, op, (product + "plan").c_str());
        ++gate.calls;
        write_plan(gate, plan);
        --gate.calls;
        return gate;
      }()),
      pass_(gate_, static_cast<std::uint64_t>(num_values), type, stream) {}

void TensorPass::close() {
  pass_.close();
  const auto lock = lock_plans();
  GateState now = read_plan(plan_, "backward");
  // Without a schedule it is not ours, and set_sparsity may have written it meanwhile.
  if (!gate_.options.schedule.empty())
    now.options.settings.sparsity = gate_.options.settings.sparsity;
  now.due = gate_.due;
  now.in_force = gate_.in_force;
  write_plan(now, plan_);
  const at::Tensor stats = on_host(stats_);
  double* const fields = stats.mutable_data_ptr<double>();
  if (const TensorStats* const seen = pass_.stats()) write_stats(*seen, fields);
  write_report(pass_.report(), fields + kStatsTensorSize);
  if (!stats.is_same(stats_)) stats_.copy_(stats);
}

}  // namespace slimgrad::torch_ops

namespace slimgrad {

at::Tensor new_gate_plan(GateOptions options, std::string_view op) {
  if (!options.seed) options.seed = torch_ops::fresh_seed();
  at::Tensor plan = at::zeros({torch_ops::plan_size()}, at::kDouble);
  torch_ops::write_plan(new_gate(options, op), plan);
  torch_ops::read_plan(plan, op);
  return plan;
}

at::Tensor new_gate_stats() { return at::zeros({torch_ops::layer_stats_size()}, at::kDouble); }

GateReport gate_report(const at::Tensor& plan, const at::Tensor& given_stats) {
  using namespace torch_ops;
  const auto lock = lock_plans();
  check_layer_stats(given_stats, "gate_report");
  const at::Tensor stats = on_host(given_stats);
  const GateState gate = read_plan(plan, "gate_report");
  const double* const fields = stats.const_data_ptr<double>();
  GateReport report = read_report(fields + kStatsTensorSize);
  report.calls = gate.calls;
  report.log_std = fields[kLogStdField];
  report.threshold = gate.in_force.threshold;
  report.quantizer = gate.in_force.quantizer;
  return report;
}

}  // namespace slimgrad
