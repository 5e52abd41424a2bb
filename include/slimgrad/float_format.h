// A low-bit floating-point format: 1 sign bit, 1 to 7 exponent bits, 0 to 6 mantissa bits, at most
// 8 in all. Written sign-exponent-mantissa: "1-5-2".
//
// The grid at scale 1, which is centred around 1 on the log scale. With n2 exponent and n1 mantissa
// bits, bias = 2^(n2-1), exponent field e and mantissa field m:
//
//   e = 0                 zero, whatever m is (the encoder writes m = 0)
//   e = 1 .. 2^n2 - 1     2^(e - bias) * (1 + m / 2^n1)
//
// A stored value is scale times that. Surprises, if you come from IEEE or OCP formats: there are no
// subnormals, no Inf and no NaN. Every code but those with e = 0 is a distinct finite number, and
// what exceeds the largest one saturates.
//
// A code is laid out sign | exponent | mantissa from the most significant bit down, so that codes
// of non-negative values grow with the value.
//
// A FloatFormat is a small immutable value; it may be shared between threads.
#ifndef SLIMGRAD_FLOAT_FORMAT_H_
#define SLIMGRAD_FLOAT_FORMAT_H_

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace slimgrad {

class FloatFormat {
 public:
  // Throws InvalidArgument outside the range above.
  FloatFormat(int exponent_bits, int mantissa_bits);

  // From "1-5-2". Throws InvalidArgument for anything else.
  static FloatFormat parse(std::string_view text);

  int exponent_bits() const { return exponent_bits_; }
  int mantissa_bits() const { return mantissa_bits_; }
  int bits() const { return 1 + exponent_bits_ + mantissa_bits_; }
  int bias() const { return 1 << (exponent_bits_ - 1); }
  int num_codes() const { return 1 << bits(); }

  // The exponents of the smallest and the largest non-zero value.
  int min_exponent() const { return 1 - bias(); }
  int max_exponent() const { return bias() - 1; }
  double smallest() const { return std::ldexp(1.0, min_exponent()); }
  double largest() const {
    return std::ldexp(2.0 - std::ldexp(1.0, -mantissa_bits_), max_exponent());
  }
  // log2 of largest over smallest: 2^n2 - 2 + log2(2 - 2^-n1).
  double octaves() const { return std::log2(largest() / smallest()); }

  // The value of a code at scale 1; -0 for zero with the sign bit. REQUIRES: code < num_codes().
  double value(std::uint32_t code) const;

  // The non-negative grid at scale 1, ascending: zero, then every positive value.
  std::vector<double> values() const;

  // "1-5-2"
  std::string name() const;

  friend bool operator==(const FloatFormat&, const FloatFormat&) = default;

 private:
  int exponent_bits_;
  int mantissa_bits_;
};

// A float of few bits as users write it: "fp2" to "fp8", whose split into exponent and mantissa is
// chosen for the data at hand, or a format. Every setting that takes such a name asks this parser
// and says itself how it chooses; nullopt is any other text, for the caller to refuse.
struct FloatChoice {
  int bits = 0;
  std::optional<FloatFormat> format;  // none: to be chosen
};
std::optional<FloatChoice> parse_float_choice(std::string_view text);

}  // namespace slimgrad

#endif  // SLIMGRAD_FLOAT_FORMAT_H_
