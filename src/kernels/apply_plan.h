// What the apply kernels do to every value, as numbers that the inner loop needs, and the plain C++
// functions that specify it value by value. Everything works on the bits of float32 numbers: the
// order of the bits of non-negative floats is the order of the floats, and rounding a mantissa with
// carry is an integer addition.
#ifndef SLIMGRAD_KERNELS_APPLY_PLAN_H_
#define SLIMGRAD_KERNELS_APPLY_PLAN_H_

#include <algorithm>
#include <bit>
#include <cstdint>

#include "base/rng.h"
#include "kernels/magnitude.h"

namespace slimgrad::kernels {

struct Grid {
  float scale = 1;
  float inverse_scale = 1;  // exact, for a power of two; 0 if there is none and we must divide
  int dropped_bits = 23;    // mantissa bits of a float32 that the format does not have
  std::uint32_t smallest_bits = 0;
  std::uint32_t top_bits = 0;
  // Ties go to the even code. A code ends with the mantissa, or without one with the exponent,
  // whose biases here and in float32 differ by an odd number: then even here is odd there.
  std::uint32_t parity = 0;
  bool stochastic_rounding = false;
  bool stochastic_underflow = false;
  float underflow_factor = 0;  // 1 / smallest if underflow is stochastic, else 0

  // For codes: code = (bits >> dropped_bits) - code_offset, and the sign above.
  std::uint32_t code_offset = 0;
  int sign_shift = 0;  // from the sign of a float32 down to the code's

  bool draws() const { return stochastic_rounding || stochastic_underflow; }
};

struct Plan {
  bool prunes = false;
  float threshold = 0;  // REQUIRES: > 0 if prunes
  bool quantizes = false;
  Grid grid;
  std::uint64_t seed = 0;
};

// x as bits; the result as bits. `at_threshold` is incremented if the result is +-threshold.
inline std::uint32_t prune_value(std::uint32_t x, float threshold, const RandomStream& random,
                                 std::uint64_t index, std::uint64_t& at_threshold) {
  const std::uint32_t magnitude = x & ~kSignMask;
  if (magnitude > std::bit_cast<std::uint32_t>(threshold)) return x;  // also NaN and Inf
  if (!random.happens(index, std::bit_cast<float>(magnitude) / threshold)) return 0;
  ++at_threshold;
  return (x & kSignMask) | std::bit_cast<std::uint32_t>(threshold);
}

// The grid value for a finite x, at scale 1 and without its sign, as the bits of a float32.
inline std::uint32_t round_to_grid(std::uint32_t x, const Grid& grid, const RandomStream& random,
                                   std::uint64_t index) {
  const float magnitude = std::bit_cast<float>(x & ~kSignMask);
  const float quotient =
      grid.inverse_scale != 0 ? magnitude * grid.inverse_scale : magnitude / grid.scale;
  const auto bits = std::bit_cast<std::uint32_t>(quotient);
  if (bits < grid.smallest_bits) {
    if (!grid.stochastic_underflow || !random.happens(index, quotient * grid.underflow_factor))
      return 0;
    return grid.smallest_bits;
  }
  const std::uint32_t step = 1u << grid.dropped_bits;
  const std::uint32_t fraction = bits & (step - 1);
  const std::uint32_t below = bits - fraction;
  bool up;
  if (grid.stochastic_rounding) {
    up = random.happens(index, static_cast<float>(fraction) / static_cast<float>(step));
  } else {
    const bool below_is_odd = ((bits >> grid.dropped_bits) & 1) != grid.parity;
    up = fraction > step / 2 || (fraction == step / 2 && below_is_odd);
  }
  return std::min(up ? below + step : below, grid.top_bits);
}

inline std::uint32_t quantize_value(std::uint32_t x, const Grid& grid, const RandomStream& random,
                                    std::uint64_t index) {
  if ((x & ~kSignMask) >= kInfinityBits) return x;
  const std::uint32_t rounded = round_to_grid(x, grid, random, index);
  if (rounded == 0) return 0;
  const float product = std::bit_cast<float>(rounded) * grid.scale;
  return (x & kSignMask) | std::bit_cast<std::uint32_t>(product);
}

// The code of a value; zero for NaN.
inline std::uint8_t encode_value(std::uint32_t x, const Grid& grid, const RandomStream& random,
                                 std::uint64_t index) {
  if ((x & ~kSignMask) > kInfinityBits) return 0;
  const std::uint32_t rounded = round_to_grid(x, grid, random, index);
  if (rounded == 0) return 0;
  return static_cast<std::uint8_t>(((x & kSignMask) >> grid.sign_shift) |
                                   ((rounded >> grid.dropped_bits) - grid.code_offset));
}

}  // namespace slimgrad::kernels

#endif  // SLIMGRAD_KERNELS_APPLY_PLAN_H_
