#include <slimgrad/measure.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <limits>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kernels/measure/power_sums.h"
#include "math/measure/gennorm_fit.h"
#include "math/newton.h"

namespace slimgrad {
namespace {

// The values with what every fit asks first.
template <typename T>
struct Data {
  std::span<const T> values;
  kernels::NonzeroRange range;

  double count() const { return static_cast<double>(range.count); }
};

template <typename T>
bool is_countable(T x) {
  return std::isfinite(x) && x != 0;
}

void require_spread(const kernels::NonzeroRange& range, const char* what) {
  check(range.min < range.max, "fit", what, "only the magnitude ", range.max);
}

// S_k of gennorm_fit.h over an array.
template <typename T>
PowerSums mean_powers(std::span<const T> values, const kernels::NonzeroRange& range, double shape) {
  PowerSums sums = kernels::power_sums(values, range.max, shape);
  for (double& sum : sums) sum /= static_cast<double>(range.count);
  return sums;
}

// ln|x| relative to the largest: mean and mean square.
template <typename T>
Distribution fit_lognormal(const Data<T>& data) {
  require_spread(data.range, "magnitudes that differ for a lognormal law");
  // Relative to max|x| the mean cannot be large against the deviation: since one ln y is 0,
  // variance >= mean^2 / n. So the difference below keeps its digits.
  const PowerSums logs = mean_powers(data.values, data.range, 0);
  return {Family::kLognormal,
          {std::log(data.range.max) + logs[1], std::sqrt(logs[2] - logs[1] * logs[1])}};
}

// Median and mean absolute deviation of ln|x|. `median_pair` are the two middle magnitudes.
template <typename T>
Distribution fit_loglaplace(const Data<T>& data, std::pair<double, double> median_pair) {
  require_spread(data.range, "magnitudes that differ for a log-Laplace law");
  const double median = (std::log(median_pair.first) + std::log(median_pair.second)) / 2;
  double sum = 0;
  for (const T x : data.values)
    if (is_countable(x)) sum += std::abs(std::log(std::abs(static_cast<double>(x))) - median);
  return {Family::kLoglaplace, {median, sum / data.count()}};
}

// The likelihood of a scale s has its maximum where the mean of w = 1 / (1 + (x/s)^2) is 1/2. That
// mean increases with s, from below 1/2 at min|x| to above at max|x|. E ln|x| = ln s for Cauchy's
// law, which makes the start.
template <typename T>
Distribution fit_cauchy(const Data<T>& data) {
  const double start = std::log(data.range.max) + mean_powers(data.values, data.range, 0)[1];
  const auto excess = [&](double log_scale) {
    const double inverse = std::exp(-log_scale);
    double sum_w = 0;
    double sum_slope = 0;
    for (const T x : data.values) {
      const double r = static_cast<double>(x) * inverse;
      const double w = is_countable(x) ? 1 / (1 + r * r) : 0;
      sum_w += w;
      sum_slope += w * (1 - w);
    }
    return ValueAndSlope{0.5 - sum_w / data.count(), -2 * sum_slope / data.count()};
  };
  // Newton doubles the digits: a step of 1e-8 leaves 1e-15.
  const double log_scale =
      falling_root(excess, start, std::log(data.range.min), std::log(data.range.max), 1e-8);
  return {Family::kCauchy, {std::exp(log_scale)}};
}

// Values that are enough to get within a percent or so of the shape.
constexpr std::size_t kSubsample = std::size_t{1} << 16;

// Every stride-th value; the stride is odd, so that it meets every channel of a tensor whose
// channel count is a power of two.
template <typename T>
std::vector<T> subsample(std::span<const T> values) {
  const std::size_t stride = (values.size() / kSubsample) | 1;
  std::vector<T> part;
  part.reserve(values.size() / stride + 1);
  for (std::size_t i = 0; i < values.size(); i += stride) part.push_back(values[i]);
  return part;
}

struct ShapeAndPower {
  double shape;
  double mean_power;  // S_0 there, which gives the scale
};

// Small arrays: Newton on the values. Large ones: Newton on a subsample, then one pass over all
// values there, whose eight sums carry the equation to the solution. The subsample is off by some
// 0.5 % of the shape, at which the Taylor polynomials are exact to the last digits, or by 5 % at
// shape 20, which leaves 1e-8; at the limit of what is trusted, 1e-6, a ten-thousandth of the
// standard error there. Should the subsample mislead (values in an order that its stride meets),
// the next pass starts at that limit.
template <typename T>
ShapeAndPower gennorm_shape(const Data<T>& data, double start) {
  const auto full = [&](double shape) { return mean_powers(data.values, data.range, shape); };
  const auto solve_in_full = [&](double from) -> ShapeAndPower {
    const double shape = gennorm_shape_from_sums(full, from);
    return {shape, full(shape)[0]};
  };
  if (data.values.size() <= 2 * kSubsample) return solve_in_full(start);

  const std::vector<T> part = subsample(data.values);
  const kernels::NonzeroRange part_range = kernels::nonzero_range(std::span<const T>(part));
  double shape = start;
  if (part_range.min < part_range.max) {
    shape = gennorm_shape_from_sums(
        [&](double b) { return mean_powers(std::span<const T>(part), part_range, b); }, start,
        1e-3);
  }
  constexpr double kTrusted = 0.1;
  for (int pass = 0; pass < 3; ++pass) {
    const PowerSums sums = full(shape);
    const double limit = kTrusted * shape;
    const auto nearby = [&](double b) {
      return shifted(sums, std::clamp(b - shape, -limit, limit));
    };
    const double solution = gennorm_shape_from_sums(nearby, shape);
    if (std::abs(solution - shape) < limit) return {solution, nearby(solution)[0]};
    shape += solution > shape ? limit : -limit;
  }
  return solve_in_full(shape);
}

template <typename T>
Distribution fit_gennorm(const Data<T>& data) {
  require_spread(data.range, "magnitudes that differ for a generalized normal law");
  const auto [sum, sum_of_squares] = kernels::magnitude_moments(data.values, data.range.max);
  const double ratio = sum * sum / (sum_of_squares * data.count());
  const auto [shape, mean_power] = gennorm_shape(data, gennorm_shape_of_moment_ratio(ratio));
  return {Family::kGennorm, {shape, gennorm_scale_from_sums(shape, mean_power, data.range.max)}};
}

template <typename T, typename MedianPair>
Distribution fit_values(const Data<T>& data, Family family, MedianPair median_pair) {
  // Kernels divide by the largest magnitude.
  check(data.range.max >= std::numeric_limits<double>::min(), "fit",
        "a magnitude that is a normal double", data.range.max);
  const double max = data.range.max;
  switch (family) {
    case Family::kUniform:
      return {family, {max}};
    case Family::kLaplace:
      return {family, {max * (kernels::magnitude_moments(data.values, max)[0] / data.count())}};
    case Family::kNormal:
      return {family,
              {max * std::sqrt(kernels::magnitude_moments(data.values, max)[1] / data.count())}};
    case Family::kCauchy:
      return fit_cauchy(data);
    case Family::kLognormal:
      return fit_lognormal(data);
    case Family::kLoglaplace:
      return fit_loglaplace(data, median_pair());
    case Family::kGennorm:
      return fit_gennorm(data);
  }
  throw_invalid("fit", "a value of Family", static_cast<int>(family));
}

template <typename T>
std::vector<double> countable_values(std::span<const T> values) {
  std::vector<double> kept;
  kept.reserve(values.size());
  for (const T x : values)
    if (is_countable(x)) kept.push_back(x);
  check(!kept.empty(), "fit", "at least one finite non-zero value", "none among ", values.size());
  return kept;
}

}  // namespace

Sample::Sample(std::span<const float> values) : values_(countable_values(values)) { sort(); }
Sample::Sample(std::span<const double> values) : values_(countable_values(values)) { sort(); }

void Sample::sort() {
  std::sort(values_.begin(), values_.end());
  // The negative half backwards and the positive half are sorted by magnitude already.
  const auto middle = std::lower_bound(values_.begin(), values_.end(), 0.0);
  std::vector<double> negative(std::make_reverse_iterator(middle), values_.rend());
  for (double& x : negative) x = -x;
  magnitudes_.resize(values_.size());
  std::merge(negative.begin(), negative.end(), middle, values_.end(), magnitudes_.begin());
}

Distribution fit(std::span<const float> values, Family family) {
  const Data<float> data{values, kernels::nonzero_range(values)};
  check(data.range.count > 0, "fit", "at least one finite non-zero value", "none among ",
        values.size());
  return fit_values(data, family, [&] {
    std::vector<float> magnitudes;
    magnitudes.reserve(data.range.count);
    for (const float x : values)
      if (is_countable(x)) magnitudes.push_back(std::abs(x));
    const auto middle = magnitudes.begin() + static_cast<std::ptrdiff_t>(magnitudes.size() / 2);
    std::nth_element(magnitudes.begin(), middle, magnitudes.end());
    const double upper = *middle;
    const double lower =
        magnitudes.size() % 2 == 1 ? upper : *std::max_element(magnitudes.begin(), middle);
    return std::pair(lower, upper);
  });
}

Distribution fit(const Sample& sample, Family family) {
  const auto m = sample.magnitudes();
  const Data<double> data{m, {m.size(), m.front(), m.back()}};
  return fit_values(data, family,
                    [&] { return std::pair(m[(m.size() - 1) / 2], m[m.size() / 2]); });
}

}  // namespace slimgrad
