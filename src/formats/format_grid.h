// The grid of a FloatFormat (slimgrad/float_format.h) as plain numbers, for rules that CPU and
// devices share. All values are exact.
#ifndef SLIMGRAD_FORMATS_FORMAT_GRID_H_
#define SLIMGRAD_FORMATS_FORMAT_GRID_H_

#include <bit>
#include <cstdint>

#include <slimgrad/float_format.h>

namespace slimgrad {

// 2^n. REQUIRES: -1022 <= n <= 1023.
constexpr double power_of_two(int n) {
  return std::bit_cast<double>(static_cast<std::uint64_t>(1023 + n) << 52);
}

struct FormatGrid {
  int exponent_bits = 1, mantissa_bits = 0;  // in the range of FloatFormat

  constexpr int bias() const { return 1 << (exponent_bits - 1); }
  constexpr int min_exponent() const { return 1 - bias(); }
  constexpr int max_exponent() const { return bias() - 1; }
  constexpr double smallest() const { return power_of_two(min_exponent()); }
  constexpr double largest() const {
    return (2 - power_of_two(-mantissa_bits)) * power_of_two(max_exponent());
  }

  // FloatFormat::values(): zero, then every positive value, ascending.
  constexpr int size() const { return ((1 << exponent_bits) - 1) * (1 << mantissa_bits) + 1; }
  constexpr double value(int i) const {
    return i == 0 ? 0 : std::bit_cast<double>(first_bits() + steps(i - 1));
  }
  // How many values are <= x, for x >= 0.
  constexpr int num_up_to(double x) const {
    if (x < smallest()) return 1;
    if (x >= largest()) return size();
    const std::uint64_t above = std::bit_cast<std::uint64_t>(x) - first_bits();
    return 2 + static_cast<int>(above >> (52 - mantissa_bits));
  }

 private:
  constexpr std::uint64_t first_bits() const { return std::bit_cast<std::uint64_t>(smallest()); }
  constexpr std::uint64_t steps(int n) const {
    return static_cast<std::uint64_t>(n) << (52 - mantissa_bits);
  }
};

inline FormatGrid grid_of(const FloatFormat& format) {
  return {format.exponent_bits(), format.mantissa_bits()};
}
inline FloatFormat format_of(const FormatGrid& grid) {
  return FloatFormat(grid.exponent_bits, grid.mantissa_bits);
}

}  // namespace slimgrad

#endif  // SLIMGRAD_FORMATS_FORMAT_GRID_H_
