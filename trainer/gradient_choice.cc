#include "trainer/gradient_choice.h"

#include <algorithm>
#include <charconv>
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

}  // namespace slimgrad::trainer
