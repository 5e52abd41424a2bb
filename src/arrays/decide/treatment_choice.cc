#include <slimgrad/gate.h>

#include "base/names.h"
#include "math/decide/treatment_rules.h"

namespace slimgrad {
namespace {

constexpr NameTable<PruneKind, 4> kPruneKindNames = {{
    {PruneKind::kNone, "none"},
    {PruneKind::kStochastic, "stochastic"},
    {PruneKind::kTopK, "topk"},
    {PruneKind::kTopKStochastic, "topk_stochastic"},
}};

TreatmentSettings rule_settings(const GradientSettings& settings) {
  return {.prune = settings.prune,
          .sparsity = settings.sparsity,
          .method = settings.method,
          .bits = settings.bits,
          .has_format = settings.format.has_value(),
          .format = settings.format ? grid_of(*settings.format) : FormatGrid(),
          .split = settings.split,
          .scale_method = settings.scale_method,
          .fixed_scale = settings.fixed_scale,
          .rounding = settings.rounding,
          .underflow = settings.underflow};
}

// What treatment_rules.h asks of a tensor.
class MeasuredTensor {
 public:
  MeasuredTensor(const TensorStats& stats, const GradientSettings& settings)
      : stats_(stats), settings_(settings) {}

  double threshold() const {
    if (settings_.prune == PruneKind::kStochastic)
      return slimgrad::threshold(stats_, settings_.sparsity, settings_.method).value;
    return magnitude_quantile(stats_.histogram.counts, stats_.histogram.total(),
                              stats_.zero_fraction, stats_.max_abs, settings_.sparsity);
  }
  FormatGrid format() const {
    if (settings_.split == SplitMethod::kLognormal)
      return lognormal_format(kFormatCrossovers, settings_.bits, stats_.log_std);
    return grid_of(best_format(settings_.bits, stats_,
                               {.method = settings_.split,
                                .scale = settings_.scale_method,
                                .fixed_scale = settings_.fixed_scale,
                                .rounding = settings_.rounding,
                                .underflow = settings_.underflow}));
  }
  double scale(const FormatGrid& format, double reach) const {
    if (settings_.scale_method == ScaleMethod::kMax && reach > 0) return reach / format.largest();
    return gradient_scale(stats_, format_of(format), settings_.scale_method);
  }

 private:
  const TensorStats& stats_;
  const GradientSettings& settings_;
};

Treatment treatment_of(const ChosenTreatment& chosen) {
  Treatment treatment;
  treatment.threshold = chosen.threshold;
  treatment.drops = chosen.drops;
  if (chosen.quantizes)
    treatment.quantizer =
        Quantizer{format_of(chosen.format), chosen.scale, chosen.rounding, chosen.underflow};
  return treatment;
}

ChosenTreatment chosen_of(const Treatment& treatment) {
  ChosenTreatment chosen;
  chosen.threshold = treatment.threshold;
  chosen.drops = treatment.drops;
  if (const auto& quantizer = treatment.quantizer) {
    chosen.quantizes = true;
    chosen.format = grid_of(quantizer->format);
    chosen.scale = quantizer->scale;
    chosen.rounding = quantizer->rounding;
    chosen.underflow = quantizer->underflow;
  }
  return chosen;
}

}  // namespace

std::string_view prune_kind_name(PruneKind kind) { return name_of(kPruneKindNames, kind); }

PruneKind parse_prune_kind(std::string_view name) {
  return parse_name(kPruneKindNames, "Prune", "kind", name);
}

Treatment choose_treatment(const TensorStats& stats, const GradientSettings& settings) {
  return treatment_of(choose(stats, rule_settings(settings), MeasuredTensor(stats, settings)));
}

Treatment guard_treatment(const Treatment& old, const TensorStats& stats,
                          const GradientSettings& settings) {
  Treatment guarded = treatment_of(
      guard(chosen_of(old), stats, rule_settings(settings), MeasuredTensor(stats, settings)));
  guarded.seed = old.seed;
  return guarded;
}

}  // namespace slimgrad
