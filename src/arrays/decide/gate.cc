#include <slimgrad/gate.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "arrays/apply/loop_treatment.h"
#include "arrays/decide/gate_fields.h"
#include "arrays/decide/gate_pass.h"
#include "base/check.h"
#include "kernels/measure/gather.h"
#include "kernels/measure/magnitude_range.h"

namespace slimgrad {
namespace {

bool is_sparsity(double x) { return x >= 0 && x < 1; }

// Texts are put together only for an error: a gate is checked in every pass.
void check_range(const GateField& field, double value, std::string_view op) {
  const auto require = [&](bool holds, const char* before, const char* after) {
    if (!holds) [[unlikely]]
      throw_invalid(op, before + std::string(field.what) + after, value);
  };
  switch (field.range) {
    case Range::kAny:
      return;
    case Range::kCount:
      return require(value >= 0, "", " >= 0");
    case Range::kPositive:
      return require(value > 0, "", " > 0");
    case Range::kCalls:
      return require(value >= 0 && value <= kMostCalls, "", " from 0 to 2^48");
    case Range::kShare:
      return require(is_sparsity(value), "0 <= ", " < 1");
    case Range::kMagnitude:
      return require(value >= 0 && std::isfinite(value), "a finite ", " >= 0");
    case Range::kBits:
      return check(value == 0 || (value >= 2 && value <= 8), op, "0 or 2 to 8 bits", value);
  }
}

// Refuses what would be set and have no effect. Not for states: what they hold may have been
// changed since, and older ones may hold anything.
void check_effects(const GateOptions& options, std::string_view op) {
  const GradientSettings &settings = options.settings, defaults;
  const bool prunes = settings.prune != PruneKind::kNone, quantizes = settings.bits > 0;
  const bool is_uniform = options.allocation == AllocationObjective::kUniform;
  if (const auto& format = settings.format)
    check(settings.bits == format->bits(), op,
          "bits = " + std::to_string(format->bits()) + " with the format " + format->name(),
          settings.bits);
  const auto require = [&](bool holds, const char* what, const char* setting, bool is_set) {
    check(holds || !is_set, op, std::string(what) + " with " + setting, "none");
  };
  constexpr const char *kPruning = "a kind of pruning", *kBits = "bits";
  require(prunes, kPruning, "a sparsity", settings.sparsity != 0);
  require(prunes, kPruning, "a schedule", !options.schedule.empty());
  require(prunes, kPruning, "an allocation", !is_uniform);
  require(prunes, kPruning, "a threshold method", settings.method != defaults.method);
  require(quantizes, kBits, "a split method", settings.split != defaults.split);
  require(quantizes, kBits, "a scale method", settings.scale_method != defaults.scale_method);
  require(quantizes, kBits, "a fixed scale", settings.fixed_scale != 0);
  require(quantizes, kBits, "a rounding", settings.rounding != defaults.rounding);
  require(quantizes, kBits, "an underflow", settings.underflow != defaults.underflow);
  require(settings.fixed_scale > 0, "a fixed scale", "a dynamic one", options.dynamic_scale);

  const auto exclude = [&](bool first, bool second, const char* either) {
    check(!(first && second), op, std::string("either ") + either, "both");
  };
  exclude(!options.schedule.empty(), !is_uniform, "a schedule or an allocation");
  exclude(settings.format.has_value(), settings.split != defaults.split,
          "a format or a split method");
  exclude(settings.fixed_scale > 0, settings.scale_method != defaults.scale_method,
          "a fixed scale or a scale method");
  // Top-k takes its threshold from the histogram; an allocation asks the method.
  exclude(prunes && settings.prune != PruneKind::kStochastic && is_uniform,
          settings.method != defaults.method, "top-k or a threshold method");
}

template <typename T>
class ArrayGradient : public TreatedGradient {
 public:
  ArrayGradient(std::span<const T> in, std::span<T> out) : values_(in), out_(out) {}

  void gather(const kernels::StratifiedSample& sample, std::uint64_t every,
              std::vector<float>& out) override {
    out.resize((sample.size() + every - 1) / every);
    kernels::gather_every(values_.data(), sample, every, 0, out.size(), out.data());
  }
  double max_abs() override { return kernels::max_magnitude(values_); }
  ApplyCounts apply(const Treatment& treatment) override {
    const ApplyCounts counts = apply_as("pass_gate", treatment, values_, out_, 0);
    values_ = out_;
    return counts;
  }
  void leave() override {
    if (values_.data() != out_.data()) std::copy(values_.begin(), values_.end(), out_.begin());
  }

 private:
  std::span<const T> values_;
  std::span<T> out_;
};

template <typename T>
GatePassage pass(GateState& gate, std::span<const T> in, std::span<T> out, std::int64_t stream) {
  check(in.size() == out.size(), "pass_gate", "as many output as input values", out.size(), " and ",
        in.size());
  check_gate_state(gate, "pass_gate");
  GatePass pass(gate, in.size(), kDType<T>, stream);
  ArrayGradient<T> gradient(in, out);
  pass.run(gradient);
  pass.close();
  return {pass.report(), pass.stats() ? *pass.stats() : TensorStats()};
}

}  // namespace

GateState new_gate(const GateOptions& options, std::string_view op) {
  GateState gate;
  gate.options = options;
  check_gate_state(gate, op);
  check_effects(options, op);
  gate.target = options.settings.sparsity;
  gate.asked_scale = options.settings.fixed_scale;
  return gate;
}

void check_gate_state(const GateState& gate, std::string_view op) {
  visit_gate_fields(
      [&]<typename T>(const GateField& field, const T& value) {
        if constexpr (std::is_arithmetic_v<T>) check_range(field, static_cast<double>(value), op);
      },
      gate);
  check(gate.options.seed.has_value(), op, "a seed in the options, another one for every gate",
        "none");
  const std::vector<SparsityAt>& schedule = gate.options.schedule;
  check(schedule.size() <= kMostSchedulePoints, op, "a schedule of at most 8 points",
        schedule.size());
  std::int64_t last = -1;
  for (const auto& [call, sparsity] : schedule) {
    check(call > last, op, "a schedule with ascending calls from 0 on", call);
    check(is_sparsity(sparsity), op, "a schedule with 0 <= sparsity < 1", sparsity);
    last = call;
  }
  if (!gate.in_force.quantizer) return;
  using Float = std::numeric_limits<float>;
  const double scale = gate.in_force.quantizer->scale;
  check(scale >= Float::min() && scale <= Float::max(), op, "a scale that is a normal float32",
        scale);
}

const std::vector<GateSetting>& gate_settings() {
  static const std::vector<GateSetting> settings = [] {
    std::vector<GateSetting> found;
    const GateState gate;
    visit_gate_fields(
        [&]<typename T>(const GateField& field, const T& value) {
          if (*field.option.name == '\0') return;
          GateSetting setting{field.name, field.option, {}, {}};
          if constexpr (std::is_enum_v<T>) {
            for (int i = 0; is_value_of<T>(i); ++i)
              setting.choices.emplace_back(EnumNames<T>::name(static_cast<T>(i)));
            setting.initially = EnumNames<T>::name(value);
          } else if constexpr (std::is_arithmetic_v<T>) {
            setting.initially = std::to_string(value);
          }
          found.push_back(std::move(setting));
        },
        gate);
    return found;
  }();
  return settings;
}

double bits_per_value(const GateReport& report) {
  constexpr double kFloatBits = 32;
  if (!report.compressed) return kFloatBits;
  const double value_bits = report.quantizer ? report.quantizer->format.bits() : kFloatBits;
  if (report.threshold <= 0) return value_bits;
  const double survivors = std::max(0.0, 1 - report.sparsity - report.at_threshold);
  const auto entropy_term = [](double share) { return share > 0 ? -share * std::log2(share) : 0; };
  return entropy_term(report.sparsity) + entropy_term(report.at_threshold) +
         entropy_term(survivors) + report.at_threshold + survivors * value_bits;
}

void set_sparsity(GateState& gate, double sparsity) {
  check(is_sparsity(sparsity), "set_sparsity", "0 <= sparsity < 1", sparsity);
  check(gate.options.settings.prune != PruneKind::kNone, "set_sparsity", "a gate that prunes",
        "one that does not");
  gate.options.schedule.clear();
  gate.options.settings.sparsity = gate.target = sparsity;
  gate.due = true;
}

GatePassage pass_gate(GateState& gate, std::span<const float> in, std::span<float> out,
                      std::int64_t stream) {
  return pass(gate, in, out, stream);
}
GatePassage pass_gate(GateState& gate, std::span<const BFloat16Bits> in,
                      std::span<BFloat16Bits> out, std::int64_t stream) {
  return pass(gate, in, out, stream);
}
GatePassage pass_gate(GateState& gate, std::span<const Float16Bits> in, std::span<Float16Bits> out,
                      std::int64_t stream) {
  return pass(gate, in, out, stream);
}

}  // namespace slimgrad
