#include <slimgrad/quantizer.h>

#include "base/names.h"

namespace slimgrad {
namespace {

constexpr NameTable<Rounding, 2> kRoundings = {
    {{Rounding::kNearest, "nearest"}, {Rounding::kStochastic, "stochastic"}}};
constexpr NameTable<Underflow, 2> kUnderflows = {
    {{Underflow::kZero, "zero"}, {Underflow::kStochastic, "stochastic"}}};

}  // namespace

Rounding parse_rounding(std::string_view name) {
  return parse_name(kRoundings, "quantize", "rounding", name);
}
Underflow parse_underflow(std::string_view name) {
  return parse_name(kUnderflows, "quantize", "underflow", name);
}

}  // namespace slimgrad
