// exp and ln that give the same bits on every machine. They use additions, subtractions,
// multiplications and divisions of IEEE doubles, each rounded once (the build forbids contraction
// into fused multiply-adds), and exact scaling by powers of two. A C library's versions differ in
// the last bit from one to the next, which would give encoder and decoder different tables. Both
// are good to a few units in the last place over the range that the tables need.
#ifndef SLIMGRAD_ARRAYS_CODING_PORTABLE_MATH_H_
#define SLIMGRAD_ARRAYS_CODING_PORTABLE_MATH_H_

#include <bit>
#include <cfloat>
#include <cmath>
#include <cstdint>

namespace slimgrad {

static_assert(FLT_EVAL_METHOD == 0, "doubles must be rounded to doubles after each operation");

inline constexpr double kPortableLn2 = 0x1.62e42fefa39efp-1;
inline constexpr double kPortableLn2High = 0x1.62e42fep-1;  // 28 bits: exact times a small integer
inline constexpr double kPortableLn2Low = 0x1.f473de6af278fp-30;

// REQUIRES: x > 0, normal and finite.
inline double portable_log(double x) {
  const auto bits = std::bit_cast<std::uint64_t>(x);
  int exponent = static_cast<int>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0xfffffffffffffull) | 0x3ff0000000000000ull);
  if (m > 0x1.6a09e667f3bcdp0) {  // sqrt 2: keeps m in [1/sqrt 2, sqrt 2]
    m = m * 0.5;
    ++exponent;
  }
  // ln m = 2 artanh y, |y| <= 0.1716; the first term left out is 2 y^23 / 23 < 1e-18.
  const double y = (m - 1.0) / (m + 1.0);
  const double z = y * y;
  double sum = 0.0;
  for (int k = 21; k >= 1; k -= 2) sum = sum * z + 1.0 / k;
  return exponent * kPortableLn2High + (2.0 * y * sum + exponent * kPortableLn2Low);
}

// 0 below -700; REQUIRES: x <= 700.
inline double portable_exp(double x) {
  if (x < -700.0) return 0.0;
  const double scaled = x / kPortableLn2;
  const int k = static_cast<int>(scaled < 0 ? scaled - 0.5 : scaled + 0.5);
  const double r = (x - k * kPortableLn2High) - k * kPortableLn2Low;
  // Taylor, |r| <= 0.35: the first term left out is r^15 / 15! < 2e-19.
  double sum = 1.0;
  for (int i = 14; i >= 1; --i) sum = 1.0 + sum * r / i;
  return std::ldexp(sum, k);
}

}  // namespace slimgrad

#endif  // SLIMGRAD_ARRAYS_CODING_PORTABLE_MATH_H_
