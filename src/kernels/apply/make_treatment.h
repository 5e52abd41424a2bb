// A treatment, as numbers, as the inner loop wants it (loop_treatment.h): `constexpr` rules that
// CPU and devices share, for arguments that were checked.
#ifndef SLIMGRAD_KERNELS_APPLY_MAKE_TREATMENT_H_
#define SLIMGRAD_KERNELS_APPLY_MAKE_TREATMENT_H_

#include <bit>
#include <cstdint>

#include "formats/format_grid.h"
#include "kernels/apply/loop_treatment.h"
#include "kernels/half_float.h"

namespace slimgrad::kernels {

// The largest value of the grid, at scale 1, whose product with `scale` is at most `largest`; 0 if
// there is none. A value of the grid has 7 bits and a float32 24, so the products are exact.
constexpr double largest_that_fits(const FormatGrid& format, float scale, double largest) {
  for (int i = format.size() - 1; i > 0; --i)
    if (format.value(i) * scale <= largest) return format.value(i);
  return 0;
}

// `top` as above. REQUIRES: top > 0, and a normal scale > 0.
constexpr Grid grid_for(const FormatGrid& format, float scale, double top, Rounding rounding,
                        Underflow underflow) {
  const auto smallest = static_cast<float>(format.smallest());
  Grid grid;
  grid.scale = scale;
  grid.inverse_scale = inverse_of(scale);
  grid.dropped_bits = 23 - format.mantissa_bits;
  grid.smallest_bits = std::bit_cast<std::uint32_t>(smallest);
  grid.top_bits = std::bit_cast<std::uint32_t>(static_cast<float>(top));
  grid.parity = format.mantissa_bits == 0 ? 1 : 0;
  grid.stochastic_rounding = rounding == Rounding::kStochastic;
  grid.stochastic_underflow = underflow == Underflow::kStochastic;
  grid.underflow_factor = grid.stochastic_underflow ? 1 / smallest : 0;
  grid.code_offset = static_cast<std::uint32_t>(127 - format.bias()) << format.mantissa_bits;
  grid.sign_shift = 32 - (1 + format.exponent_bits + format.mantissa_bits);
  return grid;
}

// A threshold as a number of the type. REQUIRES: the type can hold it.
template <typename T>
constexpr float threshold_for(double threshold) {
  return to_float(from_float_bits<T>(std::bit_cast<std::uint32_t>(static_cast<float>(threshold))));
}

}  // namespace slimgrad::kernels

#endif  // SLIMGRAD_KERNELS_APPLY_MAKE_TREATMENT_H_
