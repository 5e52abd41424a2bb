// What the apply kernels do to every value, as numbers that the inner loop needs, and the plain C++
// functions that specify it value by value. Everything works on the bits of float32 numbers: the
// order of the bits of non-negative floats is the order of the floats, and rounding a mantissa with
// carry is an integer addition.
#ifndef SLIMGRAD_KERNELS_APPLY_LOOP_TREATMENT_H_
#define SLIMGRAD_KERNELS_APPLY_LOOP_TREATMENT_H_

#include <algorithm>
#include <bit>
#include <cstdint>

#include <slimgrad/treatment.h>

#include "base/rng.h"
#include "kernels/magnitude.h"

namespace slimgrad::kernels {

// Dividing takes several times as long as multiplying, so quotients are products with an inverse.
// It is rounded up, if at all: x * inverse >= 1 for the number itself, hence the smallest value of
// a grid does not fall below it, and a value at the threshold stays there for certain. 0 if the
// inverse, times the 2^16 that probabilities are scaled by, is not a normal number: then we divide.
constexpr float inverse_of(float x) {
  if (!(x >= 0x1p-110f && x <= 0x1p125f)) return 0;
  const float inverse = 1 / x;
  return inverse * x < 1 ? std::bit_cast<float>(std::bit_cast<std::uint32_t>(inverse) + 1)
                         : inverse;
}

struct Grid {
  float scale = 1;
  float inverse_scale = 1;  // see inverse_of()
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

  constexpr bool draws() const { return stochastic_rounding || stochastic_underflow; }
  // 2^-dropped_bits.
  constexpr float inverse_step() const {
    return std::bit_cast<float>((127u - static_cast<std::uint32_t>(dropped_bits)) << 23);
  }
};

// A Treatment (slimgrad/treatment.h) as the inner loop wants it, for one type of values; the array
// layer makes it, once for all pieces.
struct LoopTreatment {
  float threshold = 0;  // a number of the type
  bool quantizes = false;
  Grid grid;
  std::uint64_t seed = 0;

  constexpr bool prunes() const { return threshold > 0; }
};

// Whether a scale or threshold is so far out that there is no inverse. Vectors leave such
// treatments to the specification: a branch for them in the loop would cost all others.
constexpr bool divides(const LoopTreatment& treatment) {
  return (treatment.prunes() && inverse_of(treatment.threshold) == 0) ||
         (treatment.quantizes && treatment.grid.inverse_scale == 0);
}

// The grid values that a magnitude may become, at scale 1 and as the bits of a float32, and the
// probability of the upper one. Where nothing is drawn it is 0.
struct Neighbours {
  std::uint32_t lower, upper;
  float probability;
};

constexpr Neighbours neighbours(float magnitude, const Grid& grid) {
  const float quotient =
      grid.inverse_scale != 0 ? magnitude * grid.inverse_scale : magnitude / grid.scale;
  const auto bits = std::bit_cast<std::uint32_t>(quotient);
  if (bits < grid.smallest_bits) {
    if (!grid.stochastic_underflow) return {0, 0, 0};
    return {0, grid.smallest_bits, quotient * grid.underflow_factor};
  }
  const std::uint32_t step = 1u << grid.dropped_bits;
  const std::uint32_t fraction = bits & (step - 1);
  const std::uint32_t lower = std::min(bits - fraction, grid.top_bits);
  const std::uint32_t upper = std::min(bits - fraction + step, grid.top_bits);
  if (grid.stochastic_rounding)
    return {lower, upper, static_cast<float>(fraction) * grid.inverse_step()};
  const bool lower_is_odd = ((bits >> grid.dropped_bits) & 1) != grid.parity;
  const bool up = fraction > step / 2 || (fraction == step / 2 && lower_is_odd);
  const std::uint32_t nearest = up ? upper : lower;
  return {nearest, nearest, 0};
}

// The probability that a magnitude up to the threshold becomes the threshold, times 2^16.
constexpr float scaled_share(float magnitude, float threshold, float inverse_threshold) {
  return inverse_threshold != 0 ? magnitude * (inverse_threshold * 0x1p16f)
                                : magnitude / threshold * 0x1p16f;
}

// `random` is a RandomStream, or a DrawnStream at `index`.
//
// x as bits; the result as bits. `at_threshold` is incremented if the result is +-threshold.
template <class Random>
constexpr std::uint32_t prune_value(std::uint32_t x, float threshold, float inverse_threshold,
                                    const Random& random, std::uint64_t index,
                                    std::uint64_t& at_threshold) {
  const std::uint32_t magnitude = x & ~kSignMask;
  if (magnitude > std::bit_cast<std::uint32_t>(threshold)) return x;  // also NaN and Inf
  const float share = scaled_share(std::bit_cast<float>(magnitude), threshold, inverse_threshold);
  if (!random.happens_scaled(index, share)) return 0;
  ++at_threshold;
  return (x & kSignMask) | std::bit_cast<std::uint32_t>(threshold);
}

// Top-k: below the threshold everything becomes zero. NaN is kept.
constexpr std::uint32_t drop_value(std::uint32_t x, float threshold) {
  return (x & ~kSignMask) < std::bit_cast<std::uint32_t>(threshold) ? 0 : x;
}

// The grid value for a finite x, at scale 1 and without its sign, as the bits of a float32.
template <class Random>
constexpr std::uint32_t round_to_grid(std::uint32_t x, const Grid& grid, const Random& random,
                                      std::uint64_t index) {
  const Neighbours near = neighbours(std::bit_cast<float>(x & ~kSignMask), grid);
  return near.probability > 0 && random.happens(index, near.probability) ? near.upper : near.lower;
}

// From the grid at scale 1 to a value with the sign of x.
constexpr std::uint32_t scaled_value(std::uint32_t x, std::uint32_t rounded, const Grid& grid) {
  if (rounded == 0) return 0;
  const float product = std::bit_cast<float>(rounded) * grid.scale;
  return (x & kSignMask) | std::bit_cast<std::uint32_t>(product);
}

template <class Random>
constexpr std::uint32_t quantize_value(std::uint32_t x, const Grid& grid, const Random& random,
                                       std::uint64_t index) {
  if ((x & ~kSignMask) >= kInfinityBits) return x;
  return scaled_value(x, round_to_grid(x, grid, random, index), grid);
}

// Pruning and quantizing in one. One draw U serves both, because of the two decisions only one is
// open: a magnitude above the threshold is rounded; one up to it becomes the threshold where
// U < p = |x| / threshold, and the threshold's neighbours on the grid are known beforehand. Where
// it lies between two and rounding is stochastic, the upper one comes where U < p q, q being its
// probability: the lower one is left with p (1 - q), so that the mean is p * threshold = |x|.
// `reached` is neighbours(threshold, grid).
template <class Random>
constexpr std::uint32_t prune_quantize_value(std::uint32_t x, float threshold,
                                             float inverse_threshold, const Neighbours& reached,
                                             const Grid& grid, const Random& random,
                                             std::uint64_t index, std::uint64_t& at_threshold) {
  const std::uint32_t magnitude = x & ~kSignMask;
  if (magnitude > std::bit_cast<std::uint32_t>(threshold))
    return quantize_value(x, grid, random, index);  // also NaN and Inf
  const float share = scaled_share(std::bit_cast<float>(magnitude), threshold, inverse_threshold);
  if (!random.happens_scaled(index, share)) return 0;
  ++at_threshold;
  const bool up =
      reached.probability > 0 && random.happens_scaled(index, share * reached.probability);
  return scaled_value(x, up ? reached.upper : reached.lower, grid);
}

// What a treatment does to one value: the specification of apply().
class ValueRule {
 public:
  constexpr explicit ValueRule(const LoopTreatment& treatment)
      : treatment_(treatment),
        inverse_threshold_(inverse_of(treatment.threshold)),
        reached_(neighbours(treatment.threshold, treatment.grid)),
        random_(treatment.seed, treatment.prunes() ? Stream::kPrune : Stream::kRound) {}

  constexpr const RandomStream& random() const { return random_; }

  constexpr std::uint32_t apply(std::uint32_t x, std::uint64_t index, ApplyCounts& counts) const {
    counts.nonfinite += (x & ~kSignMask) >= kInfinityBits;
    if (treatment_.prunes() && treatment_.quantizes)
      x = prune_quantize_value(x, treatment_.threshold, inverse_threshold_, reached_,
                               treatment_.grid, random_, index, counts.at_threshold);
    else if (treatment_.prunes())
      x = prune_value(x, treatment_.threshold, inverse_threshold_, random_, index,
                      counts.at_threshold);
    else if (treatment_.quantizes)
      x = quantize_value(x, treatment_.grid, random_, index);
    counts.zeros += (x & ~kSignMask) == 0;
    return x;
  }

 private:
  const LoopTreatment& treatment_;
  float inverse_threshold_;
  Neighbours reached_;
  RandomStream random_;
};

// The code of a value; zero for NaN.
template <class Random>
constexpr std::uint8_t encode_value(std::uint32_t x, const Grid& grid, const Random& random,
                                    std::uint64_t index) {
  if ((x & ~kSignMask) > kInfinityBits) return 0;
  const std::uint32_t rounded = round_to_grid(x, grid, random, index);
  if (rounded == 0) return 0;
  return static_cast<std::uint8_t>(((x & kSignMask) >> grid.sign_shift) |
                                   ((rounded >> grid.dropped_bits) - grid.code_offset));
}

// The same for codes: the specification of encode().
class CodeRule {
 public:
  constexpr explicit CodeRule(const LoopTreatment& treatment)
      : grid_(treatment.grid), random_(treatment.seed, Stream::kRound) {}

  constexpr const RandomStream& random() const { return random_; }

  constexpr std::uint32_t apply(std::uint32_t x, std::uint64_t index, ApplyCounts& counts) const {
    counts.nonfinite += (x & ~kSignMask) >= kInfinityBits;
    const std::uint8_t code = encode_value(x, grid_, random_, index);
    counts.zeros += code == 0;
    return code;
  }

 private:
  const Grid& grid_;
  RandomStream random_;
};

}  // namespace slimgrad::kernels

#endif  // SLIMGRAD_KERNELS_APPLY_LOOP_TREATMENT_H_
