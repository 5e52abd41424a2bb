// What every code stands for, as a table over all bytes.
#ifndef SLIMGRAD_ARRAYS_APPLY_VALUE_TABLE_H_
#define SLIMGRAD_ARRAYS_APPLY_VALUE_TABLE_H_

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

#include <slimgrad/float_format.h>

#include "formats/value_types.h"
#include "kernels/half_float.h"

namespace slimgrad {

// The nearest number of the type; what is too large for it becomes its largest.
template <typename T>
T to_value_type(double value) {
  const double largest = kLargest<T>;
  // Adding +0 makes -0 +0 and changes nothing else.
  const auto clamped = static_cast<float>(std::clamp(value, -largest, largest) + 0.0);
  return kernels::from_float_bits<T>(std::bit_cast<std::uint32_t>(clamped));
}

// The codes of a FloatFormat; +0 for the others.
template <typename T>
std::array<T, 256> float_value_table(const FloatFormat& format, float scale) {
  std::array<T, 256> table = {};
  for (std::uint32_t code = 0; code < static_cast<std::uint32_t>(format.num_codes()); ++code)
    table[code] = to_value_type<T>(format.value(code) * scale);
  return table;
}

// Symbol s stands for (s - half) steps; +0 for the symbols above 2 half.
template <typename T>
std::array<T, 256> uniform_value_table(int half, float step) {
  std::array<T, 256> table = {};
  for (int s = 0; s <= 2 * half; ++s)
    table[s] = to_value_type<T>(static_cast<double>(s - half) * step);
  return table;
}

}  // namespace slimgrad

#endif  // SLIMGRAD_ARRAYS_APPLY_VALUE_TABLE_H_
