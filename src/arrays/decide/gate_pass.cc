#include "arrays/decide/gate_pass.h"

#include <algorithm>
#include <cmath>

#include <slimgrad/seed.h>
#include <slimgrad/threshold.h>

#include "kernels/dispatch.h"
#include "kernels/measure/sample_sums.h"

namespace slimgrad {
namespace {

// Means over the values that were compared, of x before and x + e after.
struct Compared {
  double xx = 0, xe = 0, ee = 0;
  double xe_variance = 0;  // of the mean x e
};

// Reused by the thread that runs backward: an allocation of this size costs more than the gather.
thread_local std::vector<float> seen_values, treated_values;

// The cosine of x and x + e. Few large values may carry nearly all of x x, and what is compared may
// miss them, but they have hardly a part in the errors: so e e is related to the x x of the whole
// sample.
//
// With e = b x + r, r orthogonal to x, it is (1 + b) / sqrt((1 + b)^2 + r r / x x). Here b is
// x e / X and r r is e e - (x e)^2 / X, where X is the larger x x of the two: so r r is not
// negative, by Cauchy and Schwarz, whatever the samples are. The square of a mean x e that is
// nothing but chance is its variance, and is not taken from e e.
double cosine(const Compared& compared, double sample_xx) {
  const double larger_xx = std::max(sample_xx, compared.xx);
  // Nothing left of something is the worst that can be; nothing of nothing is exact.
  if (!(larger_xx > 0)) return 1;
  const double parallel = 1 + compared.xe / larger_xx;
  const double along = std::max(0.0, compared.xe * compared.xe - compared.xe_variance) / larger_xx;
  const double rest = std::max(0.0, compared.ee - along) / sample_xx;
  const double length = std::sqrt(parallel * parallel + rest);
  return length > 0 ? std::clamp(parallel / length, -1.0, 1.0) : 0;
}

}  // namespace

double scheduled_sparsity(const std::vector<SparsityAt>& schedule, std::int64_t call,
                          double otherwise) {
  if (schedule.empty()) return otherwise;
  if (call <= schedule.front().call) return schedule.front().sparsity;
  for (std::size_t i = 1; i < schedule.size(); ++i) {
    const SparsityAt &from = schedule[i - 1], &to = schedule[i];
    if (call < to.call)
      return from.sparsity + (to.sparsity - from.sparsity) * static_cast<double>(call - from.call) /
                                 static_cast<double>(to.call - from.call);
  }
  return schedule.back().sparsity;
}

TensorStats measure_sample(std::span<const float> values, std::uint64_t num_values) {
  kernels::obey_environment();
  TensorStats stats = kernels::stats_of(kernels::sum_sample(values));
  if (stats.count == 0 || stats.count == num_values) return stats;
  const double ratio = static_cast<double>(num_values) / static_cast<double>(stats.count);
  const auto scaled = [&](std::uint64_t count) {
    return static_cast<std::uint64_t>(std::llround(ratio * static_cast<double>(count)));
  };
  stats.count = num_values;
  stats.zeros = scaled(stats.zeros);
  stats.nonfinite = scaled(stats.nonfinite);
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
  constexpr std::uint64_t kCompared = 4096;  // about; more add little precision
  const std::uint64_t every = (sample.size() + kCompared - 1) / kCompared;
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
  // A threshold that the type cannot hold cannot be written either: then the largest value serves,
  // and the sparsity falls short of the wanted one.
  treatment_.threshold = std::min(treatment_.threshold, largest_of(type_));
  treatment_.seed = draw_;
  report_.compressed = true;
  return treatment_;
}

void GatePass::treated(const ApplyCounts& counts) {
  const double finite =
      static_cast<double>(std::max<std::uint64_t>(1, num_values_ - counts.nonfinite));
  report_.sparsity = static_cast<double>(counts.zeros) / finite;
  report_.at_threshold =
      static_cast<double>(counts.at_threshold) / static_cast<double>(num_values_);
  report_.nonfinite = static_cast<std::int64_t>(counts.nonfinite);
  if (const auto& quantizer = treatment_.quantizer)
    report_.saturated =
        stats_.max_abs > quantizer->scale * quantizer->format.largest() * (1 + 1e-6);
}

void GatePass::multiplied(std::uint64_t num_survivors) {
  report_.compressed = true;
  report_.sparsity = 1 - static_cast<double>(num_survivors) / static_cast<double>(num_values_);
}

void GatePass::compare(std::uint64_t every, std::span<const float> after) {
  const std::span<const float> before = seen_values;  // In a loop, a thread's own is looked up.
  Compared sums;
  double relative = 0, shift = 0, magnitude = 0;
  std::int64_t finite = 0, nonzero = 0;
  for (std::size_t i = 0; i < after.size(); ++i) {
    const double x = before[i * every], error = after[i] - x;
    if (!std::isfinite(x)) continue;
    sums.xx += x * x;
    sums.xe += x * error;
    sums.ee += error * error;
    sums.xe_variance += x * error * (x * error);
    shift += error;
    magnitude += std::abs(x);
    ++finite;
    if (x == 0) continue;
    relative += std::abs(error) / std::abs(x);
    ++nonzero;
  }
  if (finite == 0) return;
  const auto count = static_cast<double>(finite);
  report_.cosine = cosine({.xx = sums.xx / count,
                           .xe = sums.xe / count,
                           .ee = sums.ee / count,
                           .xe_variance = sums.xe_variance / count / count},
                          stats_.mean_square);
  report_.relative_error = nonzero > 0 ? relative / static_cast<double>(nonzero) : 0;
  report_.bias = magnitude > 0 ? shift / magnitude : 0;
}

void GatePass::close() {
  report_.calls = ++gate_.calls;
  report_.log_std = stats_.log_std;
  report_.threshold = gate_.in_force.threshold;
  report_.quantizer = gate_.in_force.quantizer;
}

}  // namespace slimgrad
