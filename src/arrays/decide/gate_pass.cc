#include "arrays/decide/gate_pass.h"

#include <algorithm>
#include <cmath>

#include <slimgrad/seed.h>
#include <slimgrad/threshold.h>

#include "kernels/dispatch.h"
#include "kernels/measure/sample_sums.h"
#include "math/decide/gate_rules.h"
#include "math/decide/treatment_rules.h"

namespace slimgrad {
namespace {

// Reused by the thread that runs backward: an allocation of this size costs more than the gather.
thread_local std::vector<float> seen_values, treated_values;

// A schedule as gate_rules.h asks for it.
struct Points {
  const std::vector<SparsityAt>& points;
  int size() const { return static_cast<int>(points.size()); }
  std::int64_t call(int i) const { return points[static_cast<std::size_t>(i)].call; }
  double sparsity(int i) const { return points[static_cast<std::size_t>(i)].sparsity; }
};

}  // namespace

double scheduled_sparsity(const std::vector<SparsityAt>& schedule, std::int64_t call,
                          double otherwise) {
  return scheduled_sparsity(Points{schedule}, call, otherwise);
}

TensorStats measure_sample(std::span<const float> values, std::uint64_t num_values) {
  kernels::obey_environment();
  TensorStats stats = kernels::stats_of(kernels::sum_sample(values));
  extrapolate(stats, num_values);
  return stats;
}

GatePass::GatePass(GateState& gate, std::uint64_t num_values, DType type, std::int64_t stream)
    : gate_(gate), num_values_(num_values), type_(type) {
  GradientSettings& settings = gate.options.settings;
  settings.sparsity = scheduled_sparsity(gate.options.schedule, gate.calls, settings.sparsity);
  draw_ = derive_seed(*gate.options.seed, {gate.calls, stream});
  report_.elements = static_cast<std::int64_t>(num_values);
  report_.sparsity_wanted = sparsity();
}

bool GatePass::is_open(bool in_warmup_too) const {
  const auto least = static_cast<std::uint64_t>(std::max<std::int64_t>(1, options().min_elements));
  return num_values_ >= least && (in_warmup_too || gate_.calls >= options().warmup);
}

double GatePass::sparsity() const {
  return options().settings.prune == PruneKind::kNone ? 0 : options().settings.sparsity;
}

kernels::StratifiedSample GatePass::sample(std::int64_t size) const {
  return {num_values_, static_cast<std::uint64_t>(size), draw_};
}

bool GatePass::see(GradientValues& gradient, const kernels::StratifiedSample& sample) {
  gradient.gather(sample, 1, seen_values);
  stats_ = measure_sample(seen_values, num_values_);
  has_seen_ = true;
  report_.sparsity = stats_.zero_fraction;
  report_.nonfinite = static_cast<std::int64_t>(stats_.nonfinite);
  return stats_.num_finite() > 0;
}

void GatePass::run(TreatedGradient& gradient) {
  const kernels::StratifiedSample sample = this->sample(options().sample_size);
  if (!see(gradient, sample) || !is_open()) {
    gradient.leave();
    return;
  }
  // The largest values are rare, a sample misses them, and saturation would clip exactly what
  // matters most.
  if (options().settings.bits > 0) stats_.max_abs = gradient.max_abs();
  treated(gradient.apply(decide()));
  const std::uint64_t every = comparison_step(sample.size());
  gradient.gather(sample, every, treated_values);
  compare(every, treated_values);
}

double GatePass::zero_fraction(GradientValues& gradient) {
  constexpr std::int64_t kZeroSample = 4096;
  see(gradient, sample(kZeroSample));
  return stats_.zero_fraction;
}

Treatment GatePass::prune(GradientValues& gradient) {
  if (!see(gradient, sample(options().sample_size))) return {};
  decide();
  const double threshold = treatment_.threshold, zeros = stats_.zero_fraction;
  if (!(threshold > 0) || zeros == 1) return treatment_;
  // |T - x| / |x| is 2 (1 - |x| / threshold) on average for a value below the threshold, so its
  // mean follows from the zeros that are made.
  report_.cosine = expected_cosine(stats_, threshold, ThresholdMethod::kEmpirical);
  report_.relative_error =
      2 * (expected_sparsity(stats_, threshold, ThresholdMethod::kEmpirical) - zeros) / (1 - zeros);
  return treatment_;
}

Treatment GatePass::decide() {
  const GradientSettings& settings = options().settings;
  const bool fresh =
      gate_.due || (options().refresh_every > 0 && gate_.calls % options().refresh_every == 0);
  if (fresh) gate_.in_force = choose_treatment(stats_, settings);
  gate_.due = false;
  treatment_ = fresh ? gate_.in_force : guard_treatment(gate_.in_force, stats_, settings);
  treatment_.threshold = writable_threshold(treatment_.threshold, largest_of(type_));
  treatment_.seed = draw_;
  report_.compressed = true;
  return treatment_;
}

void GatePass::treated(const ApplyCounts& counts) {
  report_.sparsity = sparsity_of(counts.zeros, num_values_, counts.nonfinite);
  report_.at_threshold =
      static_cast<double>(counts.at_threshold) / static_cast<double>(num_values_);
  report_.nonfinite = static_cast<std::int64_t>(counts.nonfinite);
  if (const auto& quantizer = treatment_.quantizer)
    report_.saturated = saturates(stats_.max_abs, quantizer->scale, quantizer->format.largest());
}

void GatePass::multiplied(std::uint64_t num_survivors) {
  report_.compressed = true;
  report_.sparsity = 1 - static_cast<double>(num_survivors) / static_cast<double>(num_values_);
}

void GatePass::compare(std::uint64_t every, std::span<const float> after) {
  const std::span<const float> before = seen_values;  // In a loop, a thread's own is looked up.
  Comparison sums;
  for (std::size_t i = 0; i < after.size(); ++i) sums.add({before[i * every], after[i]});
  sums.finish(stats_.mean_square, [](double x) { return std::sqrt(x); });
  report_.cosine = sums.cosine;
  report_.relative_error = sums.relative_error;
  report_.bias = sums.bias;
}

void GatePass::close() {
  report_.calls = ++gate_.calls;
  report_.log_std = stats_.log_std;
  report_.threshold = gate_.in_force.threshold;
  report_.quantizer = gate_.in_force.quantizer;
}

}  // namespace slimgrad
