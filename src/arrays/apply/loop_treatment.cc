#include "arrays/apply/loop_treatment.h"

#include <bit>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "kernels/half_float.h"

namespace slimgrad {
namespace {

// The largest value of the grid, at scale 1, whose product with `scale` is at most `largest`. A
// value of the grid has 7 bits and a float32 24, so the products are exact.
double largest_that_fits(std::string_view op, const FloatFormat& format, float scale,
                         double largest) {
  const auto sign = static_cast<std::uint32_t>(format.num_codes() / 2);
  const std::uint32_t first_code = 1u << format.mantissa_bits();
  for (std::uint32_t code = sign - 1; code >= first_code; --code)
    if (format.value(code) * scale <= largest) return format.value(code);
  throw_invalid(op, "a scale at which the type can hold the format's smallest value", scale);
}

}  // namespace

float checked_scale(std::string_view op, double scale) {
  check(scale >= std::numeric_limits<float>::min() && scale <= std::numeric_limits<float>::max(),
        op, "a positive scale in the normal range of float32", scale);
  return static_cast<float>(scale);
}

kernels::Grid make_grid(std::string_view op, const Quantizer& quantizer, DType type) {
  const FloatFormat& format = quantizer.format;
  const float scale = checked_scale(op, quantizer.scale);
  const double top = largest_that_fits(op, format, scale, largest_of(type));
  const auto smallest = static_cast<float>(format.smallest());
  kernels::Grid grid;
  grid.scale = scale;
  grid.inverse_scale = kernels::inverse_of(scale);
  grid.dropped_bits = 23 - format.mantissa_bits();
  grid.smallest_bits = std::bit_cast<std::uint32_t>(smallest);
  grid.top_bits = std::bit_cast<std::uint32_t>(static_cast<float>(top));
  grid.parity = format.mantissa_bits() == 0 ? 1 : 0;
  grid.stochastic_rounding = quantizer.rounding == Rounding::kStochastic;
  grid.stochastic_underflow = quantizer.underflow == Underflow::kStochastic;
  grid.underflow_factor = grid.stochastic_underflow ? 1 / smallest : 0;
  grid.code_offset = static_cast<std::uint32_t>(127 - format.bias()) << format.mantissa_bits();
  grid.sign_shift = 32 - format.bits();
  return grid;
}

float make_threshold(std::string_view op, double threshold, DType type) {
  check(threshold >= 0 && threshold <= largest_of(type), op,
        "a threshold that is not negative and that the type can hold", threshold);
  const auto as_float = static_cast<float>(threshold);
  const auto bits = std::bit_cast<std::uint32_t>(as_float);
  return with_value_type(
      type, [&]<typename T>() { return kernels::to_float(kernels::from_float_bits<T>(bits)); });
}

}  // namespace slimgrad
