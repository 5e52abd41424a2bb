// exp and ln that give the same bits on every machine. They use additions, subtractions,
// multiplications and divisions of IEEE doubles, each rounded once (the build forbids contraction
// into fused multiply-adds), and exact scaling by powers of two. A C library's versions differ in
// the last bit from one to the next and from CPU to CPU, which would give encoder and decoder
// different tables, and two machines different plans. Both are good to two units in the last place.
//
// The bits are part of the payload format (docs/format.md): they never change.
#ifndef SLIMGRAD_BASE_PORTABLE_MATH_H_
#define SLIMGRAD_BASE_PORTABLE_MATH_H_

#include <bit>
#include <cfloat>
#include <cstdint>
#include <limits>

namespace slimgrad {

static_assert(FLT_EVAL_METHOD == 0, "doubles must be rounded to doubles after each operation");

inline constexpr double kPortableLn2 = 0x1.62e42fefa39efp-1;
inline constexpr double kPortableLn2High = 0x1.62e42fep-1;  // 28 bits: exact times a small integer
inline constexpr double kPortableLn2Low = 0x1.f473de6af278fp-30;

// x = 2^exponent m with m in [1/sqrt 2, sqrt 2], as the exponent and ln m.
struct PortableLog {
  int exponent = 0;
  double log_mantissa = 0;
};

// REQUIRES: 0 < x < infinity.
constexpr PortableLog portable_log_parts(double x) {
  const bool is_subnormal = x < std::numeric_limits<double>::min();
  const auto bits = std::bit_cast<std::uint64_t>(is_subnormal ? x * 0x1p54 : x);
  int exponent = static_cast<int>(bits >> 52) - (is_subnormal ? 1023 + 54 : 1023);
  double m = std::bit_cast<double>((bits & 0xfffffffffffffull) | 0x3ff0000000000000ull);
  if (m > 0x1.6a09e667f3bcdp0) {  // sqrt 2
    m = m * 0.5;
    ++exponent;
  }
  // ln m = 2 artanh y, |y| <= 0.1716; the first term left out is 2 y^23 / 23 < 1e-18.
  const double y = (m - 1.0) / (m + 1.0);
  const double z = y * y;
  double sum = 0.0;
#pragma GCC unroll 11  // which makes the quotients constants
  for (int k = 21; k >= 1; k -= 2) sum = sum * z + 1.0 / k;
  return {exponent, 2.0 * y * sum};
}

// What ln and log2 are where portable_log_parts() does not say.
constexpr double portable_log_of_special(double x) {
  using Double = std::numeric_limits<double>;
  return x == 0 ? -Double::infinity() : x < 0 ? Double::quiet_NaN() : x;
}

constexpr double portable_log(double x) {
  if (!(x > 0 && x <= std::numeric_limits<double>::max())) return portable_log_of_special(x);
  const auto [exponent, log_mantissa] = portable_log_parts(x);
  return exponent * kPortableLn2High + (log_mantissa + exponent * kPortableLn2Low);
}

// Exact at powers of two.
constexpr double portable_log2(double x) {
  if (!(x > 0 && x <= std::numeric_limits<double>::max())) return portable_log_of_special(x);
  const auto [exponent, log_mantissa] = portable_log_parts(x);
  return exponent + log_mantissa / kPortableLn2;
}

constexpr double portable_exp(double x) {
  if (!(x > -746.0)) return x <= -746.0 ? 0.0 : x;  // NaN
  if (x > 710.0) return std::numeric_limits<double>::infinity();
  const double scaled = x / kPortableLn2;
  const int k = static_cast<int>(scaled < 0 ? scaled - 0.5 : scaled + 0.5);
  const double r = (x - k * kPortableLn2High) - k * kPortableLn2Low;
  // Taylor, |r| <= 0.35: the first term left out is r^15 / 15! < 2e-19.
  double sum = 1.0;
#pragma GCC unroll 14
  for (int i = 14; i >= 1; --i) sum = 1.0 + sum * r / i;
  // By 2^k, in two steps of which only the second may round or overflow.
  const auto power = [](int n) {
    return std::bit_cast<double>(static_cast<std::uint64_t>(1023 + n) << 52);
  };
  return sum * power(k / 2) * power(k - k / 2);
}

}  // namespace slimgrad

#endif  // SLIMGRAD_BASE_PORTABLE_MATH_H_
