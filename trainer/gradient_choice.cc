#include "trainer/gradient_choice.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <initializer_list>
#include <string>
#include <type_traits>

#include <slimgrad/float_format.h>

#include "arrays/decide/gate_fields.h"
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

GateTexts gate_texts(GateTexts given) {
  given.emplace("prune", prune_kind_name(PruneKind::kStochastic));
  for (const GateSetting& setting : gate_settings())
    given.emplace(setting.option.name, setting.initially);
  return given;
}

namespace {

double number_in(std::string_view digits, std::string_view option, std::string_view expected,
                 std::string_view text) {
  double number{};
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  check(error == std::errc() && end == digits.data() + digits.size(), option, expected, text);
  return number;
}

std::int64_t steps_in(std::string_view text, std::string_view option, std::string_view expected,
                      std::int64_t least) {
  const double steps = number_in(text, option, expected, text);
  check(steps >= static_cast<double>(least) && steps <= 1e9 && steps == std::floor(steps), option,
        expected, text);
  return static_cast<std::int64_t>(steps);
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
    choice.growth_interval =
        colon == rest.size()
            ? 2000
            : steps_in(rest.substr(colon + 1), "scale",
                       "dynamic:SCALE:STEPS with at least one step until the scale is doubled", 1);
  } else {
    settings.scale_method = parse_scale_method(text);
  }
}

// The settings that are values of their fields; --scale and --refresh take other texts, too.
GateOptions gate_options_in(const GateTexts& texts) {
  GateState gate;
  visit_gate_fields(
      [&]<typename T>(const GateField& field, T& value) {
        const auto& [name, help, other] = field.option;
        if (*name == '\0' || *other != '\0') return;
        if constexpr (std::is_enum_v<T>)
          value = EnumNames<T>::parse(texts.at(name));
        else if constexpr (std::is_same_v<T, std::int64_t>)
          value = steps_in(texts.at(name), name, "a whole number from 0 to 10^9", 0);
      },
      gate);
  return gate.options;
}

AllocationChoice allocation_in(const GradientOptions& options, const GateOptions& gate) {
  AllocationChoice allocation{.objective = gate.allocation, .cap = options.cap};
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
        objective_name(gate.allocation));
  check(allocation.objective != AllocationObjective::kTargets || !allocation.targets.empty(),
        "allocation", "--target LAYER=COSINE with targets", "none");
  check(uniform || gate.settings.method != ThresholdMethod::kMean, "threshold",
        "another method with an allocation: mean says nothing of the cosine", "mean");
  return allocation;
}

// Top-k takes its threshold from the histogram; an allocation asks the method.
bool has_threshold_method(const GradientChoice& choice) {
  return !choice.gates || choice.gates->prune == PruneKind::kStochastic ||
         choice.allocation.objective != AllocationObjective::kUniform;
}

}  // namespace

void refine(GradientChoice& choice, const GradientOptions& options) {
  const GateOptions asked = gate_options_in(options.gate);
  const PruneKind prune = asked.settings.prune;
  check(prune != PruneKind::kNone, "prune", "a kind of pruning", "none");
  check(options.sparse_way == "auto" || options.sparse_way == "always", "sparse-way",
        "auto or always", options.sparse_way);
  const std::string& refresh = options.gate.at("refresh");
  choice.refresh_every =
      refresh == "epoch" ? 0 : steps_in(refresh, "refresh", "a number of steps, or epoch", 1);
  choice.warmup = asked.warmup;
  choice.min_elements = asked.min_elements;
  choice.allocation = allocation_in(options, asked);
  choice.sparse_method = asked.settings.method;
  choice.always_sparse = options.sparse_way == "always";
  if (choice.sparse)
    check(prune == PruneKind::kStochastic, "prune", "stochastic with a sparse backward pass",
          prune_kind_name(prune));
  if (!choice.gates) return;
  GradientSettings& settings = *choice.gates;
  if (settings.prune != PruneKind::kNone) {
    settings.prune = prune;
    if (has_threshold_method(choice)) settings.method = asked.settings.method;
  }
  if (settings.bits == 0) return;
  if (!settings.format) settings.split = asked.settings.split;
  settings.rounding = asked.settings.rounding;
  settings.underflow = asked.settings.underflow;
  set_scale(choice, options.gate.at("scale"));
}

void check_effects(std::span<const GradientChoice> runs, const GradientOptions& options) {
  const GradientOptions defaults;
  using Run = const GradientChoice&;
  const auto prunes = [](Run run) {
    return run.sparse || (run.gates && run.gates->prune != PruneKind::kNone);
  };
  const auto quantizes = [](Run run) { return run.gates && run.gates->bits > 0; };
  const auto chooses_split = [&](Run run) { return quantizes(run) && !run.gates->format; };
  const auto asks_method = [&](Run run) { return prunes(run) && has_threshold_method(run); };
  const auto compresses = [](Run run) { return run.gates || run.sparse; };

  constexpr const char* kPruned = "a run with prune:SPARSITY or sparse:WEIGHT:INPUT";
  constexpr const char* kQuantized = "a run with a format, such as fp4";
  constexpr const char* kCompressed = "a run with other --gradients than none";
  struct Need {
    const char *option, *expected;
    std::function<bool(Run)> holds;
  };
  for (const auto& [option, expected, holds] : std::initializer_list<Need>{
           {"prune", kPruned, prunes},
           {"threshold", "a run that prunes, and not by top-k without an allocation", asks_method},
           {"allocation", kPruned, prunes},
           {"split", "a run with bits that are to be split, such as fp4", chooses_split},
           {"scale", kQuantized, quantizes},
           {"rounding", kQuantized, quantizes},
           {"underflow", kQuantized, quantizes},
           {"refresh", kCompressed, compresses},
           {"warmup", kCompressed, compresses},
           {"min_elements", kCompressed, compresses}})
    check(options.gate.at(option) == defaults.gate.at(option) || std::ranges::any_of(runs, holds),
          option, expected, "none");
  const std::string& allocation = options.gate.at("allocation");
  check(options.cap == defaults.cap || allocation != defaults.gate.at("allocation"), "cap",
        "an --allocation over layers", allocation);
  check(options.sparse_way == defaults.sparse_way ||
            std::ranges::any_of(runs, [](Run run) { return run.sparse.has_value(); }),
        "sparse-way", "a run with sparse:WEIGHT:INPUT", "none");
}

}  // namespace slimgrad::trainer
