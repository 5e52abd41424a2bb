#include <slimgrad/float_format.h>

#include "base/check.h"

namespace slimgrad {

FloatFormat::FloatFormat(int exponent_bits, int mantissa_bits)
    : exponent_bits_(exponent_bits), mantissa_bits_(mantissa_bits) {
  check(exponent_bits >= 1 && exponent_bits <= 7, "FloatFormat", "1 to 7 exponent bits",
        exponent_bits);
  check(mantissa_bits >= 0 && mantissa_bits <= 6, "FloatFormat", "0 to 6 mantissa bits",
        mantissa_bits);
  check(bits() <= 8, "FloatFormat", "at most 8 bits with the sign", bits());
}

FloatFormat FloatFormat::parse(std::string_view text) {
  // One digit a field covers every format in range, so the shape is exactly "1-d-d".
  const auto digit = [&](std::size_t i) { return text[i] >= '0' && text[i] <= '9'; };
  check(text.size() == 5 && text.substr(0, 2) == "1-" && digit(2) && text[3] == '-' && digit(4),
        "FloatFormat", "sign-exponent-mantissa such as 1-5-2", '\'', text, '\'');
  return FloatFormat(text[2] - '0', text[4] - '0');
}

std::optional<FloatChoice> parse_float_choice(std::string_view text) {
  if (text.size() == 3 && text.starts_with("fp") && text[2] >= '2' && text[2] <= '8')
    return FloatChoice{.bits = text[2] - '0', .format = std::nullopt};
  try {
    const FloatFormat format = FloatFormat::parse(text);
    return FloatChoice{.bits = format.bits(), .format = format};
  } catch (const InvalidArgument&) {
    return std::nullopt;
  }
}

double FloatFormat::value(std::uint32_t code) const {
  const std::uint32_t mantissa = code & ((1u << mantissa_bits_) - 1);
  const int exponent = static_cast<int>(code >> mantissa_bits_) & ((1 << exponent_bits_) - 1);
  const double sign = (code >> (bits() - 1)) & 1 ? -1.0 : 1.0;
  if (exponent == 0) return sign * 0.0;
  return sign * std::ldexp(1.0 + std::ldexp(mantissa, -mantissa_bits_), exponent - bias());
}

std::vector<double> FloatFormat::values() const {
  std::vector<double> grid = {0.0};
  for (std::uint32_t code = 1u << mantissa_bits_;
       code < static_cast<std::uint32_t>(num_codes()) / 2; ++code)
    grid.push_back(value(code));
  return grid;
}

std::string FloatFormat::name() const {
  return "1-" + std::to_string(exponent_bits_) + "-" + std::to_string(mantissa_bits_);
}

}  // namespace slimgrad
