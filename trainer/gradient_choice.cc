#include "trainer/gradient_choice.h"

#include <algorithm>
#include <charconv>
#include <string>

#include "base/check.h"

namespace slimgrad::trainer {
namespace {

constexpr int kLeastBits = 2, kMostBits = 8;

[[noreturn]] void refuse(std::string_view text) {
  throw_invalid("gradients",
                "none, fp2 to fp8, a format such as 1-3-2, prune:SPARSITY with 0 <= SPARSITY < 1, "
                "both as prune:0.85+fp6, or sparse:WEIGHT:INPUT with two sparsities",
                text);
}

template <typename Number>
Number number_in(std::string_view digits, std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size()) refuse(text);
  return number;
}

double sparsity_in(std::string_view digits, std::string_view text) {
  const double sparsity = number_in<double>(digits, text);
  if (!(sparsity >= 0 && sparsity < 1)) refuse(text);
  return sparsity;
}

FloatFormat format_in(std::string_view name, std::string_view text) {
  try {
    return FloatFormat::parse(name);
  } catch (const InvalidArgument&) {
    refuse(text);
  }
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
  if (rest.starts_with("1-")) {
    settings.format = format_in(rest, text);
    settings.bits = settings.format->bits();
    return {.gates = settings};
  }
  if (!rest.starts_with("fp")) refuse(text);
  settings.bits = number_in<int>(rest.substr(2), text);
  if (settings.bits < kLeastBits || settings.bits > kMostBits) refuse(text);
  return {.gates = settings};
}

}  // namespace slimgrad::trainer
