#include "math/measure/gennorm_fit.h"

#include <algorithm>
#include <boost/math/special_functions/digamma.hpp>
#include <boost/math/special_functions/trigamma.hpp>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "math/measure/gennorm.h"

namespace slimgrad {
namespace {

// g and its derivative with respect to ln b. b g is the slope of the likelihood per value in ln b,
// so that the maximum is where g falls through zero.
ValueAndSlope score(double b, const PowerSums& sums) {
  const double a = 1 / b;
  const double psi = boost::math::digamma(a);
  const double psi1 = boost::math::trigamma(a);
  const double a1 = sums[1] / sums[0];
  const double a2 = sums[2] / sums[0];
  const double log_scale = std::log(b * sums[0]);
  const double slope = (1 - psi - log_scale) * a * a - psi1 * a * a * a - a2 + a1 * a1 + a1 * a;
  return {1 + psi * a - a1 + log_scale * a, b * slope};
}

// One occupied bin of a histogram, in d = ln y - center, |d| <= half_width, density 1 + tilt d.
struct Bin {
  double weight, center, half_width, tilt;
};

// Mean of d^k exp(b d), k = 0..3, over the bin: with h = b half_width the zeroth is F = sinh(h)/h,
// and a derivative in b brings down a d. From h F = sinh h: h F' + F = cosh h, h F'' + 2 F' =
// sinh h, h F''' + 3 F'' = cosh h. For small h these cancel and the series
// F = sum h^2j / (2j+1)! is used.
std::array<double, 4> tilted_means(double b, double half_width) {
  if (half_width == 0) return {1, 0, 0, 0};
  const double h = b * half_width;
  std::array<double, 4> f{};
  if (h < 1) {
    // Terms up to j = 9: the first one left out is below 1e-17 of its sum.
    double term = 1;  // h^(2j) / (2j+1)!
    for (int j = 0; j <= 9; ++j) {
      const double n = 2 * j;
      f[0] += term;
      if (j > 0) {
        f[1] += n * term / h;
        f[2] += n * (n - 1) * term / (h * h);
        f[3] += n * (n - 1) * (n - 2) * term / (h * h * h);
      }
      term *= h * h / ((n + 2) * (n + 3));
    }
  } else {
    f[0] = std::sinh(h) / h;
    f[1] = (std::cosh(h) - f[0]) / h;
    f[2] = (std::sinh(h) - 2 * f[1]) / h;
    f[3] = (std::cosh(h) - 3 * f[2]) / h;
  }
  double power = 1;
  for (double& value : f) {
    value *= power;
    power *= half_width;
  }
  return f;
}

std::vector<Bin> occupied_bins(const TensorStats& stats) {
  const auto& counts = stats.histogram.counts;
  const double total = static_cast<double>(stats.histogram.total());
  const int top = LogHistogram::bin_of(static_cast<float>(stats.max_abs));
  const auto upper_edge = [&](int k) {
    return k == top ? stats.max_abs : LogHistogram::lower_edge(k + 1);
  };
  // The lowest bin begins at zero; its values, all of them denormal, are put into the octave below
  // its upper end.
  const auto lower_edge = [&](int k) {
    return k == 0 ? upper_edge(0) / 2 : LogHistogram::lower_edge(k);
  };
  const auto width = [&](int k) { return std::log(upper_edge(k) / lower_edge(k)); };
  const auto density = [&](int k) { return static_cast<double>(counts[k]) / width(k); };

  std::vector<Bin> bins;
  for (int k = 0; k <= top; ++k) {
    if (counts[k] == 0) continue;
    Bin bin{static_cast<double>(counts[k]) / total,
            std::log(lower_edge(k) / stats.max_abs) + width(k) / 2, width(k) / 2, 0};
    if (bin.half_width > 0 && k > 0) {
      // The slope between the neighbours' middles; at the top between this bin and the one below.
      const bool has_upper = k < top && width(k + 1) > 0;
      const double rise = density(has_upper ? k + 1 : k) - density(k - 1);
      const double run =
          width(k - 1) / 2 + (has_upper ? width(k) + width(k + 1) / 2 : width(k) / 2);
      const double limit = 1 / bin.half_width;  // a density is not negative
      bin.tilt = std::clamp(rise / run / density(k), -limit, limit);
    }
    bins.push_back(bin);
  }
  return bins;
}

PowerSums sums_of_bins(const std::vector<Bin>& bins, double b) {
  PowerSums sums{};
  for (const Bin& bin : bins) {
    const double power = bin.weight * std::exp(b * bin.center);
    if (power == 0) continue;
    const auto d = tilted_means(b, bin.half_width);
    // Means of d^k y^b under the tilted density, then of (center + d)^k y^b.
    const double m0 = power * (d[0] + bin.tilt * d[1]);
    const double m1 = power * (d[1] + bin.tilt * d[2]);
    const double m2 = power * (d[2] + bin.tilt * d[3]);
    sums[0] += m0;
    sums[1] += bin.center * m0 + m1;
    sums[2] += bin.center * (bin.center * m0 + 2 * m1) + m2;
  }
  return sums;
}

}  // namespace

PowerSums shifted(const PowerSums& sums, double step) {
  PowerSums result{};
  const int size = static_cast<int>(sums.size());
  for (int k = 0; k < size; ++k) {
    double value = 0;  // Horner on sum_j S_{k+j} step^j / j!
    for (int j = size - 1 - k; j >= 0; --j) value = sums[k + j] + value * step / (j + 1);
    result[k] = value;
  }
  return result;
}

double gennorm_shape_from_sums(const PowerSumsOfShape& sums, double start_shape, double tolerance) {
  const auto score_of_log = [&](double log_shape) {
    const double shape = std::exp(log_shape);
    return score(shape, sums(shape));
  };
  return shape_root(score_of_log, start_shape, tolerance);
}

double gennorm_scale_from_sums(double shape, double mean_power, double max_abs) {
  return max_abs * std::pow(shape * mean_power, 1 / shape);
}

Gennorm fit_gennorm(const TensorStats& stats) {
  check(stats.histogram.total() > 0 && stats.max_abs > 0, "fit_gennorm",
        "at least one finite non-zero value", "an empty histogram");
  const std::vector<Bin> bins = occupied_bins(stats);
  // The means count zeros, the fit does not.
  const double ratio = stats.mean_abs * stats.mean_abs / stats.mean_square *
                       static_cast<double>(stats.num_finite()) /
                       static_cast<double>(stats.num_nonzero());
  const auto sums = [&](double shape) { return sums_of_bins(bins, shape); };
  const double shape = gennorm_shape_from_sums(sums, gennorm_shape_of_moment_ratio(ratio));
  return {shape, gennorm_scale_from_sums(shape, sums(shape)[0], stats.max_abs)};
}

}  // namespace slimgrad
