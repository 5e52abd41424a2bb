// Tables from a fitted model: the encoder sends a few bytes of parameters, and both sides compute
// the same integer weights from them.
//
// Symbol k stands for the cell of width one around k - centre, in units of the quantizer's step;
// the first and last symbol take the tails. Its probability under the law with density proportional
// to exp(-(|x| / scale)^shape) is a difference of regularised incomplete gamma functions P(1 /
// shape, (x / scale)^shape) at the cell's borders. shape 2 is the normal law (scale = sqrt 2 times
// its deviation), shape 1 Laplace's. The result is mixed with 1/1024 of the uniform law, so that no
// symbol's code word explodes where the model is wrong.
//
// Every machine gets the same weights: the parameters are the values of 16-bit codes
// (formats/model_parameter.h), and the arithmetic is that of portable_math.h: IEEE double +, -, *,
// / in the order written.
#ifndef SLIMGRAD_MATH_CODING_MODEL_TABLE_H_
#define SLIMGRAD_MATH_CODING_MODEL_TABLE_H_

#include <cstdint>

#include "math/coding/huffman_lengths.h"

namespace slimgrad {

struct ModelParameters {
  double shape = 0;                    // exactly as the payload's header has it
  double scale = 0;                    // the same, in units of the step
  std::uint16_t twice_centre = 0;      // 2 * centre: 255 puts zero between the codes 127 and 128
  std::uint8_t first = 0, last = 255;  // the symbols in use, first < last
};

inline constexpr double kSmallestModelShape = 0.05, kLargestModelShape = 64.0;

// Whether the parameters make a table: first < last, shape within the limits above.
bool is_valid(const ModelParameters& parameters);

// Positive weights of the symbols in use, adding up to about 2^40. REQUIRES: is_valid(parameters).
Weights model_weights(const ModelParameters& parameters);

// ln Gamma(a) for a in [1/64, 40].
double portable_log_gamma(double a);
// P(a, x) and its complement Q, each without cancellation; for a in [1/64, 40], x >= 0.
struct GammaPair {
  double p, q;
};
GammaPair portable_incomplete_gamma(double a, double x);

}  // namespace slimgrad

#endif  // SLIMGRAD_MATH_CODING_MODEL_TABLE_H_
