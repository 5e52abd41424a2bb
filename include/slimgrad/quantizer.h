// A quantizer: what is rounded to, and how. Plain data; quantize.h has the rules.
#ifndef SLIMGRAD_QUANTIZER_H_
#define SLIMGRAD_QUANTIZER_H_

#include <string_view>

#include <slimgrad/float_format.h>

namespace slimgrad {

enum class Rounding { kNearest, kStochastic };
enum class Underflow { kZero, kStochastic };

// "nearest", "stochastic"; "zero", "stochastic". Throw InvalidArgument for other names.
Rounding parse_rounding(std::string_view name);
Underflow parse_underflow(std::string_view name);

struct Quantizer {
  FloatFormat format;
  double scale = 1.0;  // Used as a float32: positive, finite and not subnormal.
  Rounding rounding = Rounding::kNearest;
  Underflow underflow = Underflow::kZero;
};

}  // namespace slimgrad

#endif  // SLIMGRAD_QUANTIZER_H_
