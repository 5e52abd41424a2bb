#include "trainer/gradient_choice.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>

#include <slimgrad/float_format.h>

#include "base/check.h"

namespace slimgrad::trainer {
namespace {

[[noreturn]] void refuse(std::string_view text) {
  throw_invalid("gradients",
                "none, fp2 to fp8, a format such as 1-3-2, prune:SPARSITY with 0 <= SPARSITY < 1, "
                "both as prune:0.85+fp6, or sparse:WEIGHT:INPUT with two sparsities",
                text);
}

double sparsity_in(std::string_view digits, std::string_view text) {
  double sparsity = 0;
  const char* const last = digits.data() + digits.size();
  const auto [end, error] = std::from_chars(digits.data(), last, sparsity);
  if (error != std::errc() || end != last || !(sparsity >= 0 && sparsity < 1)) refuse(text);
  return sparsity;
}

}  // namespace

GradientChoice parse_gradient_choice(std::string_view text) {
  if (text == "none") return {};
  std::string_view rest = text;
  if (rest.starts_with("sparse:")) {
    rest.remove_prefix(7);
    const std::size_t colon = rest.find(':');
    if (colon == rest.npos) refuse(text);
    return {.sparse = SparseChoice{.weight = sparsity_in(rest.substr(0, colon), text),
                                   .input = sparsity_in(rest.substr(colon + 1), text)}};
  }
  GradientSettings settings;
  if (rest.starts_with("prune:")) {
    const std::size_t plus = std::min(rest.find('+'), rest.size());
    settings.prune = PruneKind::kStochastic;
    settings.sparsity = sparsity_in(rest.substr(6, plus - 6), text);
    if (plus == rest.size()) return {.gates = settings};
    rest.remove_prefix(plus + 1);
  }
  const std::optional<FloatChoice> choice = parse_float_choice(rest);
  if (!choice) refuse(text);
  settings.bits = choice->bits;
  settings.format = choice->format;
  return {.gates = settings};
}

// ---- the options beside --gradients -------------------------------------------------------------

namespace {

double number_in(std::string_view digits, std::string_view option, std::string_view expected,
                 std::string_view text) {
  double number{};
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  check(error == std::errc() && end == digits.data() + digits.size(), option, expected, text);
  return number;
}

// "65536" or "2^16".
double loss_scale_in(std::string_view digits, std::string_view text) {
  constexpr std::string_view kExpected =
      "max, predicted, error, static:SCALE or dynamic:SCALE[:STEPS], with a scale such as 2^16";
  const bool is_power = digits.starts_with("2^");
  const double number = number_in(is_power ? digits.substr(2) : digits, "scale", kExpected, text);
  const double scale = is_power ? std::exp2(number) : number;
  check(scale >= 0x1p-100 && scale <= 0x1p100, "scale", kExpected, text);
  return scale;
}

// Quantizing a gradient at loss scale L is quantizing it on a grid of scale 1 / L.
void set_scale(GradientChoice& choice, std::string_view text) {
  GradientSettings& settings = *choice.gates;
  if (text.starts_with("static:")) {
    settings.fixed_scale = 1 / loss_scale_in(text.substr(7), text);
  } else if (text.starts_with("dynamic:")) {
    std::string_view rest = text.substr(8);
    const std::size_t colon = std::min(rest.find(':'), rest.size());
    settings.fixed_scale = 1 / loss_scale_in(rest.substr(0, colon), text);
    const double steps = colon == rest.size() ? 2000
                                              : number_in(rest.substr(colon + 1), "scale",
                                                          "dynamic:SCALE:STEPS", text);
    check(steps >= 1 && steps <= 1e9 && steps == std::floor(steps), "scale",
          "dynamic:SCALE:STEPS with at least one step until the scale is doubled", text);
    choice.growth_interval = static_cast<std::int64_t>(steps);
  } else {
    settings.scale_method = parse_scale_method(text);
  }
}

std::int64_t refresh_in(std::string_view text) {
  if (text == "epoch") return 0;
  constexpr std::string_view kExpected = "a number of steps, or epoch";
  const double steps = number_in(text, "refresh", kExpected, text);
  check(steps >= 1 && steps <= 1e9 && steps == std::floor(steps), "refresh", kExpected, text);
  return static_cast<std::int64_t>(steps);
}

AllocationChoice allocation_in(const GradientOptions& options) {
  AllocationChoice allocation{.objective = parse_allocation_objective(options.allocation),
                              .cap = options.cap};
  for (const std::string_view target : options.targets) {
    const std::size_t equals = target.rfind('=');
    constexpr std::string_view kExpected = "LAYER=COSINE with 0 < COSINE <= 1";
    check(equals != target.npos && equals > 0, "target", kExpected, target);
    const double cosine = number_in(target.substr(equals + 1), "target", kExpected, target);
    check(cosine > 0 && cosine <= 1, "target", kExpected, target);
    allocation.targets.emplace_back(target.substr(0, equals), cosine);
  }
  check(options.cap > 0, "cap", "0 < cap <= 1", options.cap);
  const bool uniform = allocation.objective == AllocationObjective::kUniform;
  check(!uniform || allocation.targets.empty(), "target", "an --allocation that takes targets",
        options.allocation);
  check(allocation.objective != AllocationObjective::kTargets || !allocation.targets.empty(),
        "allocation", "--target LAYER=COSINE with targets", "none");
  check(uniform || options.threshold != "mean", "threshold",
        "another method with an allocation: mean says nothing of the cosine", options.threshold);
  return allocation;
}

// Top-k takes its threshold from the histogram; an allocation asks the method.
bool has_threshold_method(const GradientChoice& choice) {
  return !choice.gates || choice.gates->prune == PruneKind::kStochastic ||
         choice.allocation.objective != AllocationObjective::kUniform;
}

}  // namespace

void refine(GradientChoice& choice, const GradientOptions& options) {
  const ThresholdMethod method = parse_threshold_method(options.threshold);
  const PruneKind prune = parse_prune_kind(options.prune);
  check(prune != PruneKind::kNone, "prune", "a kind of pruning", options.prune);
  check(options.sparse_way == "auto" || options.sparse_way == "always", "sparse-way",
        "auto or always", options.sparse_way);
  choice.refresh_every = refresh_in(options.refresh);
  choice.warmup = options.warmup;
  choice.min_elements = options.min_elements;
  choice.allocation = allocation_in(options);
  choice.sparse_method = method;
  choice.always_sparse = options.sparse_way == "always";
  if (choice.sparse)
    check(prune == PruneKind::kStochastic, "prune", "stochastic with a sparse backward pass",
          options.prune);
  if (!choice.gates) return;
  GradientSettings& settings = *choice.gates;
  const SplitMethod split = parse_split_method(options.split);
  const Rounding rounding = parse_rounding(options.rounding);
  const Underflow underflow = parse_underflow(options.underflow);
  if (settings.prune != PruneKind::kNone) {
    settings.prune = prune;
    if (has_threshold_method(choice)) settings.method = method;
  }
  if (settings.bits == 0) return;
  if (!settings.format) settings.split = split;
  settings.rounding = rounding;
  settings.underflow = underflow;
  set_scale(choice, options.scale);
}

void check_effects(std::span<const GradientChoice> runs, const GradientOptions& options) {
  const GradientOptions defaults;
  const auto require = [&](const char* option, bool is_set, const char* expected, auto holds) {
    check(!is_set || std::ranges::any_of(runs, holds), option, expected, "none");
  };
  const auto prunes = [](const GradientChoice& run) {
    return run.sparse || (run.gates && run.gates->prune != PruneKind::kNone);
  };
  const auto quantizes = [](const GradientChoice& run) { return run.gates && run.gates->bits > 0; };
  const auto chooses_split = [&](const GradientChoice& run) {
    return quantizes(run) && !run.gates->format;
  };
  const auto asks_method = [&](const GradientChoice& run) {
    return prunes(run) && has_threshold_method(run);
  };
  const auto compresses = [](const GradientChoice& run) { return run.gates || run.sparse; };
  const auto is_sparse = [](const GradientChoice& run) { return run.sparse.has_value(); };

  constexpr const char* kPruned = "a run with prune:SPARSITY or sparse:WEIGHT:INPUT";
  constexpr const char* kQuantized = "a run with a format, such as fp4";
  require("prune", options.prune != defaults.prune, kPruned, prunes);
  require("threshold", options.threshold != defaults.threshold,
          "a run that prunes, and not by top-k without an allocation", asks_method);
  require("allocation", options.allocation != defaults.allocation, kPruned, prunes);
  check(options.cap == defaults.cap || options.allocation != "uniform", "cap",
        "an --allocation over layers", options.allocation);
  require("split", options.split != defaults.split,
          "a run with bits that are to be split, such as fp4", chooses_split);
  require("scale", options.scale != defaults.scale, kQuantized, quantizes);
  require("rounding", options.rounding != defaults.rounding, kQuantized, quantizes);
  require("underflow", options.underflow != defaults.underflow, kQuantized, quantizes);
  constexpr const char* kCompressed = "a run with other --gradients than none";
  require("refresh", options.refresh != defaults.refresh, kCompressed, compresses);
  require("warmup", options.warmup != defaults.warmup, kCompressed, compresses);
  require("min-elements", options.min_elements != defaults.min_elements, kCompressed, compresses);
  require("sparse-way", options.sparse_way != defaults.sparse_way, "a run with sparse:WEIGHT:INPUT",
          is_sparse);
}

}  // namespace slimgrad::trainer
