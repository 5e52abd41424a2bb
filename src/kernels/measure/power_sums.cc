#include "kernels/measure/power_sums.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/measure/power_sums.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace slimgrad::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using Doubles = hn::ScalableTag<double>;
using Vector = hn::Vec<Doubles>;

Vector load(Doubles d, const double* p) { return hn::LoadU(d, p); }
Vector load(Doubles d, const float* p) {
  return hn::PromoteTo(d, hn::LoadU(hn::Rebind<float, Doubles>(), p));
}

// Every eighth value is added by the same lane, without fused multiply-adds, and lanes are joined
// by a fixed tree: vectors of any width give the same bits. A narrow one goes over a block once for
// each of its parts of the lanes.
constexpr std::size_t kLanes = 8;

// Short enough that a lane's rounding errors do not add up and that a block stays in the cache,
// long enough that the joining at its end costs nothing.
constexpr std::size_t kBlock = 4096;

struct LaneSums {
  HWY_ALIGN double lanes[kLanes] = {};

  double total() const {
    double sums[kLanes];
    std::copy(lanes, lanes + kLanes, sums);
    for (std::size_t half = kLanes / 2; half > 0; half /= 2)
      for (std::size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
    return sums[0];
  }
};

// Feeds the magnitudes to `body` a vector at a time; calls body.flush() after every part of a block
// and body.join() after the block. What does not fill all lanes is padded with zeros, which every
// body leaves out.
template <typename T, typename Body>
void for_each_vector(std::span<const T> values, Body& body) {
  const Doubles d;
  for (std::size_t begin = 0; begin < values.size(); begin += kBlock) {
    const std::size_t end = std::min(begin + kBlock, values.size());
    const std::size_t whole = begin + (end - begin) / kLanes * kLanes;
    T padded[kLanes] = {};
    std::copy(values.data() + whole, values.data() + end, padded);
    for (std::size_t part = 0; part < kLanes; part += hn::Lanes(d)) {
      for (std::size_t i = begin + part; i < whole; i += kLanes)
        body.add(d, hn::Abs(load(d, values.data() + i)));
      if (whole < end) body.add(d, hn::Abs(load(d, padded + part)));
      body.flush(d, part);
    }
    body.join(d);
  }
}

HWY_INLINE Vector multiply_add(Vector x, Vector y, Vector z) { return hn::Add(hn::Mul(x, y), z); }

using Integers = hn::RebindToUnsigned<Doubles>;

// ln of a positive finite number, within an ulp or so: fdlibm's, in its order. Where y is 0, which
// an underflow may have made it, a number below every other logarithm.
HWY_INLINE Vector log_of(Doubles d, Vector y) {
  const Integers u;
  const auto set = [&](double x) HWY_ATTR { return hn::Set(d, x); };
  const auto is_small = hn::Lt(y, set(std::numeric_limits<double>::min()));
  y = hn::IfThenElse(is_small, hn::Mul(y, set(0x1p54)), y);
  // To [sqrt 1/2, sqrt 2): the mantissa's bits from there on, and what is above as the exponent.
  const auto shifted =
      hn::Add(hn::BitCast(u, y), hn::Set(u, 0x3ff0000000000000u - 0x3fe6a09e667f3bcdu));
  const auto mantissa =
      hn::Add(hn::And(shifted, hn::Set(u, 0x000fffffffffffffu)), hn::Set(u, 0x3fe6a09e667f3bcdu));
  // An integer below 2^52 in the bits of 2^52 is a sum of the two.
  const Vector biased =
      hn::BitCast(d, hn::Or(hn::ShiftRight<52>(shifted), hn::Set(u, 0x4330000000000000u)));
  const Vector k =
      hn::Sub(biased, hn::IfThenElse(is_small, set(0x1p52 + 1023 + 54), set(0x1p52 + 1023)));
  const Vector f = hn::Sub(hn::BitCast(d, mantissa), set(1));
  const Vector half = hn::Mul(hn::Mul(set(0.5), f), f);
  const Vector s = hn::Div(f, hn::Add(set(2), f)), z = hn::Mul(s, s), w = hn::Mul(z, z);
  const Vector t1 = hn::Mul(
      w,
      multiply_add(w, multiply_add(w, set(1.531383769920937332e-01), set(2.222219843214978396e-01)),
                   set(3.999999999940941908e-01)));
  const Vector t2 = hn::Mul(
      z, multiply_add(
             w,
             multiply_add(
                 w, multiply_add(w, set(1.479819860511658591e-01), set(1.818357216161805012e-01)),
                 set(2.857142874366239149e-01)),
             set(6.666666666666735130e-01)));
  const Vector low =
      multiply_add(s, hn::Add(half, hn::Add(t1, t2)), hn::Mul(k, set(1.90821492927058770002e-10)));
  return hn::Add(hn::Add(hn::Sub(low, half), f), hn::Mul(k, set(6.93147180369123816490e-01)));
}

// exp within an ulp, also fdlibm's; what would be below 1e-304 is 0. REQUIRES: x < 1.
HWY_INLINE Vector exp_of(Doubles d, Vector x) {
  const Integers u;
  const auto set = [&](double y) HWY_ATTR { return hn::Set(d, y); };
  const auto is_tiny = hn::Lt(x, set(-700));
  x = hn::Max(x, set(-700));
  // The nearest integer, in the lowest bits of a number whose last place is 1.
  const Vector rounded = multiply_add(x, set(1.44269504088896338700), set(0x1.8p52));
  const Vector k = hn::Sub(rounded, set(0x1.8p52));
  const Vector high = hn::Sub(x, hn::Mul(k, set(6.93147180369123816490e-01)));
  const Vector low = hn::Mul(k, set(1.90821492927058770002e-10));
  const Vector r = hn::Sub(high, low), t = hn::Mul(r, r);
  Vector p = multiply_add(t, set(4.13813679705723846039e-08), set(-1.65339022054652515390e-06));
  p = multiply_add(t, p, set(6.61375632143793436117e-05));
  p = multiply_add(t, p, set(-2.77777777770155933842e-03));
  p = multiply_add(t, p, set(1.66666666666666019037e-01));
  const Vector c = hn::Sub(r, hn::Mul(t, p));
  const Vector fraction = hn::Div(hn::Mul(r, c), hn::Sub(set(2), c));
  const Vector y = hn::Add(set(1), hn::Add(hn::Sub(fraction, low), high));
  const auto scaled = hn::Add(hn::BitCast(u, y), hn::ShiftLeft<52>(hn::BitCast(u, rounded)));
  return hn::IfThenZeroElse(is_tiny, hn::BitCast(d, scaled));
}

// The finite non-zero ones. A NaN fails both comparisons.
hn::Mask<Doubles> countable(Doubles d, Vector magnitude) {
  return hn::And(hn::Gt(magnitude, hn::Zero(d)),
                 hn::Le(magnitude, hn::Set(d, std::numeric_limits<double>::max())));
}

struct RangeBody {
  NonzeroRange range{0, std::numeric_limits<double>::infinity(), 0};
  Vector low, high;

  // Constructors are written out because implicit ones are not compiled for the target.
  RangeBody() : low(hn::Set(Doubles(), range.min)), high(hn::Zero(Doubles())) {}

  void add(Doubles d, Vector magnitude) {
    const auto valid = countable(d, magnitude);
    low = hn::Min(low, hn::IfThenElse(valid, magnitude, low));
    high = hn::Max(high, hn::IfThenElseZero(valid, magnitude));
    range.count += hn::CountTrue(d, valid);
  }
  void flush(Doubles, std::size_t) {}
  void join(Doubles d) {
    range.min = std::min(range.min, hn::GetLane(hn::MinOfLanes(d, low)));
    range.max = std::max(range.max, hn::GetLane(hn::MaxOfLanes(d, high)));
  }
};

// Sums, one after the other, of all that add() adds to sums[k].
template <std::size_t n>
struct Sums {
  std::array<double, n> totals{};
  LaneSums lanes[n];
  Vector sums[n];

  Sums() { std::fill(sums, sums + n, hn::Zero(Doubles())); }

  void flush(Doubles d, std::size_t part) {
    for (std::size_t k = 0; k < n; ++k) {
      hn::StoreU(sums[k], d, lanes[k].lanes + part);
      sums[k] = hn::Zero(d);
    }
  }
  void join(Doubles) {
    for (std::size_t k = 0; k < n; ++k) totals[k] += lanes[k].total();
  }
};

struct MomentsBody : Sums<2> {
  double inverse_max;

  explicit MomentsBody(double max_abs) : inverse_max(1 / max_abs) {}

  void add(Doubles d, Vector magnitude) {
    const Vector y =
        hn::IfThenElseZero(countable(d, magnitude), hn::Mul(magnitude, hn::Set(d, inverse_max)));
    sums[0] = hn::Add(sums[0], y);
    sums[1] = multiply_add(y, y, sums[1]);
  }
};

struct PowerBody : Sums<8> {
  double inverse_max, shape;

  PowerBody(double max_abs, double exponent) : inverse_max(1 / max_abs), shape(exponent) {}

  void add(Doubles d, Vector magnitude) {
    const auto valid = countable(d, magnitude);
    const Vector y =
        hn::IfThenElse(valid, hn::Mul(magnitude, hn::Set(d, inverse_max)), hn::Set(d, 1.0));
    const Vector log = log_of(d, y);
    const Vector power = hn::IfThenElseZero(valid, exp_of(d, hn::Mul(hn::Set(d, shape), log)));
    const Vector log2 = hn::Mul(log, log);
    const Vector log3 = hn::Mul(log2, log);
    const Vector power1 = hn::Mul(power, log);
    const Vector power2 = hn::Mul(power, log2);
    const Vector power3 = hn::Mul(power1, log2);
    sums[0] = hn::Add(sums[0], power);
    sums[1] = hn::Add(sums[1], power1);
    sums[2] = hn::Add(sums[2], power2);
    sums[3] = hn::Add(sums[3], power3);
    sums[4] = multiply_add(power2, log2, sums[4]);
    sums[5] = multiply_add(power3, log2, sums[5]);
    sums[6] = multiply_add(power3, log3, sums[6]);
    sums[7] = multiply_add(power3, hn::Mul(log2, log2), sums[7]);
  }
};

template <typename T>
NonzeroRange range_of(std::span<const T> values) {
  RangeBody body;
  for_each_vector(values, body);
  if (body.range.count == 0) body.range.min = 0;
  return body.range;
}

template <typename T>
std::array<double, 2> moments_of(std::span<const T> values, double max) {
  MomentsBody body(max);
  for_each_vector(values, body);
  return body.totals;
}

template <typename T>
std::array<double, 8> powers_of(std::span<const T> values, double max, double shape) {
  PowerBody body(max, shape);
  for_each_vector(values, body);
  return body.totals;
}

// Highway exports plain functions.
NonzeroRange RangeFloat(std::span<const float> v) { return range_of(v); }
NonzeroRange RangeDouble(std::span<const double> v) { return range_of(v); }
std::array<double, 2> MomentsFloat(std::span<const float> v, double m) { return moments_of(v, m); }
std::array<double, 2> MomentsDouble(std::span<const double> v, double m) {
  return moments_of(v, m);
}
std::array<double, 8> PowersFloat(std::span<const float> v, double m, double b) {
  return powers_of(v, m, b);
}
std::array<double, 8> PowersDouble(std::span<const double> v, double m, double b) {
  return powers_of(v, m, b);
}

}  // namespace
}  // namespace slimgrad::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace slimgrad::kernels {

HWY_EXPORT(RangeFloat);
HWY_EXPORT(RangeDouble);
HWY_EXPORT(MomentsFloat);
HWY_EXPORT(MomentsDouble);
HWY_EXPORT(PowersFloat);
HWY_EXPORT(PowersDouble);

NonzeroRange nonzero_range(std::span<const float> values) noexcept {
  return HWY_DYNAMIC_DISPATCH(RangeFloat)(values);
}
NonzeroRange nonzero_range(std::span<const double> values) noexcept {
  return HWY_DYNAMIC_DISPATCH(RangeDouble)(values);
}
std::array<double, 2> magnitude_moments(std::span<const float> values, double max) noexcept {
  return HWY_DYNAMIC_DISPATCH(MomentsFloat)(values, max);
}
std::array<double, 2> magnitude_moments(std::span<const double> values, double max) noexcept {
  return HWY_DYNAMIC_DISPATCH(MomentsDouble)(values, max);
}
std::array<double, 8> power_sums(std::span<const float> values, double max, double shape) noexcept {
  return HWY_DYNAMIC_DISPATCH(PowersFloat)(values, max, shape);
}
std::array<double, 8> power_sums(std::span<const double> values, double max,
                                 double shape) noexcept {
  return HWY_DYNAMIC_DISPATCH(PowersDouble)(values, max, shape);
}

}  // namespace slimgrad::kernels
#endif
