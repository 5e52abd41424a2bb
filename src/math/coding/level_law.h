// What a uniform quantizer without an upper end (formats/open_levels.h) makes of a law: the mass of
// every symbol, and the bits that a value then takes at entropy.
//
// Stochastic rounding sends x to level k with probability max(0, 1 - |x / step - k|). With
// T(t) = E[(|x| / step - t)+] of the values of one sign, levels k1 to k2 together have the mass
//   T(k1 - 1) - T(k1) - T(k2) + T(k2 + 1),
// and zero what is left. Rounding to nearest gives P(|x| / step > k1 - 1/2) - P(.. > k2 + 1/2).
// Either way the bits fall in the step, from any number to 0.
//
// Every machine gets the same masses: the arithmetic is that of base/portable_math.h.
#ifndef SLIMGRAD_MATH_CODING_LEVEL_LAW_H_
#define SLIMGRAD_MATH_CODING_LEVEL_LAW_H_

#include <array>
#include <span>
#include <vector>

#include <slimgrad/treatment.h>

#include "formats/open_levels.h"
#include "math/coding/huffman_lengths.h"

namespace slimgrad {

// By symbol. They add up to the mass of the law.
using SymbolMasses = std::array<double, kNumOpenSymbols>;

// Magnitudes of one sign in ascending bins, in each of them evenly spread.
struct MagnitudeBin {
  double low, high, count;  // low < high
};
struct BinnedLaw {
  double zeros = 0;
  std::vector<MagnitudeBin> positive, negative;
};
SymbolMasses level_masses(const BinnedLaw& law, double step, Rounding rounding);

// The generalized normal law with density proportional to exp(-(|x| / scale)^shape).
// REQUIRES: shape within the limits of model_table.h.
SymbolMasses level_masses(double shape, double scale, double step, Rounding rounding);

// The bits of all values together: -sum mass log2(mass / sum), and the extra bits.
double level_bits(const SymbolMasses& masses);

// The integer weights of a coder's table for a law, with stochastic rounding, `scale` in units of
// the step: the masses mixed with 1/1024 of the uniform law, times 2^40.
Weights level_weights(double shape, double scale);

}  // namespace slimgrad

#endif  // SLIMGRAD_MATH_CODING_LEVEL_LAW_H_
