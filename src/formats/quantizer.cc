#include <slimgrad/treatment.h>

#include "base/names.h"

namespace slimgrad {
namespace {

constexpr NameTable<Rounding, 2> kRoundings = {
    {{Rounding::kNearest, "nearest"}, {Rounding::kStochastic, "stochastic"}}};
constexpr NameTable<Underflow, 2> kUnderflows = {
    {{Underflow::kZero, "zero"}, {Underflow::kStochastic, "stochastic"}}};

}  // namespace

std::string_view rounding_name(Rounding rounding) { return name_of(kRoundings, rounding); }
std::string_view underflow_name(Underflow underflow) { return name_of(kUnderflows, underflow); }

Rounding parse_rounding(std::string_view name) {
  return parse_name(kRoundings, "quantize", "rounding", name);
}
Underflow parse_underflow(std::string_view name) {
  return parse_name(kUnderflows, "quantize", "underflow", name);
}

}  // namespace slimgrad
