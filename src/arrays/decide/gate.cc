#include <slimgrad/gate.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "arrays/apply/loop_treatment.h"
#include "arrays/decide/gate_pass.h"
#include "base/check.h"
#include "kernels/measure/gather.h"
#include "kernels/measure/magnitude_range.h"

namespace slimgrad {
namespace {

bool is_sparsity(double x) { return x >= 0 && x < 1; }
bool is_magnitude(double x) { return x >= 0 && std::isfinite(x); }

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
  check_gate_options(gate.options, "pass_gate");
  GatePass pass(gate, in.size(), kDType<T>, stream);
  ArrayGradient<T> gradient(in, out);
  pass.run(gradient);
  return pass.close();
}

}  // namespace

void check_gate_options(const GateOptions& options, std::string_view op) {
  const auto not_negative = [&](std::int64_t value, const char* name) {
    check(value >= 0, op, std::string(name) + " >= 0", value);
  };
  not_negative(options.min_elements, "min_elements");
  not_negative(options.refresh_every, "refresh_every");
  not_negative(options.warmup, "warmup");
  check(options.sample_size > 0, op, "sample_size > 0", options.sample_size);
  check(options.seed.has_value(), op, "a seed in the options, another one for every gate", "none");
  const GradientSettings& settings = options.settings;
  check(is_sparsity(settings.sparsity), op, "0 <= sparsity < 1", settings.sparsity);
  check(settings.bits == 0 || (settings.bits >= 2 && settings.bits <= 8), op, "0 or 2 to 8 bits",
        settings.bits);
  check(is_magnitude(settings.fixed_scale), op, "a finite fixed scale >= 0", settings.fixed_scale);
  check(options.schedule.size() <= kMostSchedulePoints, op, "a schedule of at most 8 points",
        options.schedule.size());
  std::int64_t last = -1;
  for (const auto& [call, sparsity] : options.schedule) {
    check(call > last, op, "a schedule with ascending calls from 0 on", call);
    check(is_sparsity(sparsity), op, "a schedule with 0 <= sparsity < 1", sparsity);
    last = call;
  }
}

GateState new_gate(const GateOptions& options, std::string_view op) {
  check_gate_options(options, op);
  check_effects(options, op);
  GateState gate;
  gate.options = options;
  gate.target = options.settings.sparsity;
  gate.asked_scale = options.settings.fixed_scale;
  return gate;
}

void check_gate_state(const GateState& gate, std::string_view op) {
  check_gate_options(gate.options, op);
  const auto check_counter = [&](std::int64_t value, const char* name) {
    check(value >= 0 && value <= kMostCalls, op, std::string(name) + " from 0 to 2^48", value);
  };
  check_counter(gate.calls, "calls");
  check_counter(gate.good_steps, "good steps");
  check_counter(gate.seen_calls, "calls seen");
  check(is_sparsity(gate.target), op, "0 <= target sparsity < 1", gate.target);
  check(is_magnitude(gate.asked_scale), op, "a finite asked scale >= 0", gate.asked_scale);
  const double threshold = gate.in_force.threshold;
  check(is_magnitude(threshold), op, "a finite threshold >= 0", threshold);
  if (!gate.in_force.quantizer) return;
  using Float = std::numeric_limits<float>;
  const double scale = gate.in_force.quantizer->scale;
  check(scale >= Float::min() && scale <= Float::max(), op, "a scale that is a normal float32",
        scale);
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
