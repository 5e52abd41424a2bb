#include <slimgrad/threshold.h>

#include <cmath>

#include "base/portable_math.h"

#include "base/check.h"
#include "base/names.h"
#include "math/decide/pruning_law.h"

namespace slimgrad {
namespace {

constexpr NameTable<ThresholdMethod, 5> kMethodNames = {{
    {ThresholdMethod::kEmpirical, "empirical"},
    {ThresholdMethod::kLognormal, "lognormal"},
    {ThresholdMethod::kGennorm, "gennorm"},
    {ThresholdMethod::kNormal, "normal"},
    {ThresholdMethod::kMean, "mean"},
}};

void check_has_values(const TensorStats& stats, const char* op) {
  check(stats.num_finite() > 0, op, "statistics of at least one finite value", stats.count,
        " values, ", stats.nonfinite, " of them Inf or NaN");
}

void check_threshold(double threshold, const char* op) {
  check(std::isfinite(threshold) && threshold >= 0, op, "a finite threshold >= 0", threshold);
}

}  // namespace

std::string_view method_name(ThresholdMethod method) { return name_of(kMethodNames, method); }

ThresholdMethod parse_threshold_method(std::string_view name) {
  return parse_name(kMethodNames, "threshold", "method", name);
}

Threshold threshold(const TensorStats& stats, double sparsity, ThresholdMethod method) {
  check(sparsity >= 0 && sparsity < 1, "threshold", "0 <= sparsity < 1", sparsity);
  check_has_values(stats, "threshold");
  const double zeros = stats.zero_fraction;
  if (sparsity <= zeros)
    return {.value = 0, .sparsity = zeros, .survivors = 1 - zeros, .nothing_to_prune = true};
  const auto law = make_pruning_law(stats, method, "threshold");
  const double log_alpha = solve_for_sparsity(*law, sparsity, zeros);
  const PruningSplit split = law->split(log_alpha);
  return {.value = portable_exp(log_alpha),
          .sparsity = 1 - (1 - zeros) * split.kept,
          .at_threshold = (1 - zeros) * split.at,
          .survivors = (1 - zeros) * split.survivors};
}

double expected_sparsity(const TensorStats& stats, double threshold, ThresholdMethod method) {
  check_threshold(threshold, "expected_sparsity");
  check_has_values(stats, "expected_sparsity");
  const double zeros = stats.zero_fraction;
  if (threshold == 0 || zeros == 1) return zeros;
  const auto law = make_pruning_law(stats, method, "expected_sparsity");
  return zeros + (1 - zeros) * law->split(portable_log(threshold)).zeros;
}

double expected_cosine(const TensorStats& stats, double threshold, ThresholdMethod method) {
  check_threshold(threshold, "expected_cosine");
  check_has_values(stats, "expected_cosine");
  if (threshold == 0 || stats.zero_fraction == 1) return 1;
  const auto law = make_pruning_law(stats, method, "expected_cosine");
  return 1 / std::sqrt(1 + law->nmse(portable_log(threshold)));
}

TensorStats lognormal_stats(double log_mean, double log_std, double zero_fraction,
                            std::uint64_t count) {
  check(std::isfinite(log_mean), "lognormal_stats", "a finite log_mean", log_mean);
  check(std::isfinite(log_std) && log_std >= 0, "lognormal_stats", "a finite log_std >= 0",
        log_std);
  check(zero_fraction >= 0 && zero_fraction <= 1, "lognormal_stats", "0 <= zero_fraction <= 1",
        zero_fraction);
  check(count > 0, "lognormal_stats", "count > 0", count);
  TensorStats stats;
  stats.count = count;
  stats.log_mean = log_mean;
  stats.log_std = log_std;
  stats.zero_fraction = zero_fraction;  // The count below is rounded; this is not.
  stats.zeros =
      static_cast<std::uint64_t>(std::llround(zero_fraction * static_cast<double>(count)));
  return stats;
}

}  // namespace slimgrad
