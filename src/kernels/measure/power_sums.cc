#include "kernels/measure/power_sums.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/measure/power_sums.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/contrib/math/math-inl.h>
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

double sum_of(Doubles d, Vector v) { return hn::GetLane(hn::SumOfLanes(d, v)); }

// Short enough that a lane's rounding errors do not add up, long enough that the horizontal sums at
// its end cost nothing.
constexpr std::size_t kBlock = 4096;

// Feeds the magnitudes to `body` a vector at a time and calls body.flush() after every block. What
// does not fill a vector is padded with zeros, which every body leaves out.
template <typename T, typename Body>
void for_each_vector(std::span<const T> values, Body& body) {
  const Doubles d;
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t begin = 0; begin < values.size(); begin += kBlock) {
    const std::size_t end = std::min(begin + kBlock, values.size());
    std::size_t i = begin;
    for (; i + lanes <= end; i += lanes) body.add(d, hn::Abs(load(d, values.data() + i)));
    if (i < end) {
      T padded[hn::MaxLanes(Doubles())] = {};
      std::copy(values.data() + i, values.data() + end, padded);
      body.add(d, hn::Abs(load(d, padded)));
    }
    body.flush(d);
  }
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
  void flush(Doubles d) {
    range.min = std::min(range.min, hn::GetLane(hn::MinOfLanes(d, low)));
    range.max = std::max(range.max, hn::GetLane(hn::MaxOfLanes(d, high)));
  }
};

struct MomentsBody {
  double inverse_max;
  std::array<double, 2> totals{};
  Vector sum, sum_of_squares;

  explicit MomentsBody(double max_abs)
      : inverse_max(1 / max_abs), sum(hn::Zero(Doubles())), sum_of_squares(sum) {}

  void add(Doubles d, Vector magnitude) {
    const Vector y =
        hn::IfThenElseZero(countable(d, magnitude), hn::Mul(magnitude, hn::Set(d, inverse_max)));
    sum = hn::Add(sum, y);
    sum_of_squares = hn::MulAdd(y, y, sum_of_squares);
  }
  void flush(Doubles d) {
    totals[0] += sum_of(d, sum);
    totals[1] += sum_of(d, sum_of_squares);
    sum = sum_of_squares = hn::Zero(d);
  }
};

struct PowerBody {
  double inverse_max, shape;
  std::array<double, 8> totals{};
  Vector s0, s1, s2, s3, s4, s5, s6, s7;

  PowerBody(double max_abs, double exponent)
      : inverse_max(1 / max_abs),
        shape(exponent),
        s0(hn::Zero(Doubles())),
        s1(s0),
        s2(s0),
        s3(s0),
        s4(s0),
        s5(s0),
        s6(s0),
        s7(s0) {}

  void add(Doubles d, Vector magnitude) {
    const auto valid = countable(d, magnitude);
    const Vector y =
        hn::IfThenElse(valid, hn::Mul(magnitude, hn::Set(d, inverse_max)), hn::Set(d, 1.0));
    const Vector log = hn::Log(d, y);
    const Vector power = hn::IfThenElseZero(valid, hn::Exp(d, hn::Mul(hn::Set(d, shape), log)));
    const Vector log2 = hn::Mul(log, log);
    const Vector log3 = hn::Mul(log2, log);
    const Vector power1 = hn::Mul(power, log);
    const Vector power2 = hn::Mul(power, log2);
    const Vector power3 = hn::Mul(power1, log2);
    s0 = hn::Add(s0, power);
    s1 = hn::Add(s1, power1);
    s2 = hn::Add(s2, power2);
    s3 = hn::Add(s3, power3);
    s4 = hn::MulAdd(power2, log2, s4);
    s5 = hn::MulAdd(power3, log2, s5);
    s6 = hn::MulAdd(power3, log3, s6);
    s7 = hn::MulAdd(power3, hn::Mul(log2, log2), s7);
  }
  void flush(Doubles d) {
    totals[0] += sum_of(d, s0);
    totals[1] += sum_of(d, s1);
    totals[2] += sum_of(d, s2);
    totals[3] += sum_of(d, s3);
    totals[4] += sum_of(d, s4);
    totals[5] += sum_of(d, s5);
    totals[6] += sum_of(d, s6);
    totals[7] += sum_of(d, s7);
    s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = hn::Zero(d);
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
