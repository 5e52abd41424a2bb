// What a gate reckons besides the treatment, as `constexpr` rules that CPU and devices share: the
// sparsity of a schedule, the counts of a whole gradient from those of a sample, and the report.
#ifndef SLIMGRAD_MATH_DECIDE_GATE_RULES_H_
#define SLIMGRAD_MATH_DECIDE_GATE_RULES_H_

#include <algorithm>
#include <cstdint>
#include <limits>

namespace slimgrad {

// Linear between the points of a schedule; `otherwise` if there is none. call(i) and sparsity(i)
// are those of its points.
template <class Schedule>
constexpr double scheduled_sparsity(const Schedule& schedule, std::int64_t call, double otherwise) {
  const int size = schedule.size();
  if (size == 0) return otherwise;
  if (call <= schedule.call(0)) return schedule.sparsity(0);
  for (int i = 1; i < size; ++i) {
    const std::int64_t from = schedule.call(i - 1), to = schedule.call(i);
    const double low = schedule.sparsity(i - 1), high = schedule.sparsity(i);
    if (call < to)
      return low + (high - low) * static_cast<double>(call - from) / static_cast<double>(to - from);
  }
  return schedule.sparsity(size - 1);
}

// The statistics of a sample, which has the names of TensorStats, with the counts of the whole
// array, by which layers are weighted.
template <class Stats>
constexpr void extrapolate(Stats& stats, std::uint64_t num_values) {
  if (stats.count == 0 || stats.count == num_values) return;
  const double ratio = static_cast<double>(num_values) / static_cast<double>(stats.count);
  const auto scaled = [&](std::uint64_t count) {  // rounded to nearest
    const double product = ratio * static_cast<double>(count);
    const auto whole = static_cast<std::uint64_t>(product);
    return whole + (product - static_cast<double>(whole) >= 0.5 ? 1 : 0);
  };
  stats.count = num_values;
  stats.zeros = scaled(stats.zeros);
  stats.nonfinite = scaled(stats.nonfinite);
}

// About how many of the values of a sample are compared with what became of them; more add little
// precision. Every comparison_step(size)-th is.
inline constexpr std::uint64_t kMostCompared = 4096;
constexpr std::uint64_t comparison_step(std::uint64_t sample_size) {
  return (sample_size + kMostCompared - 1) / kMostCompared;
}

// What one value x, which became x + error, adds to the sums of a comparison.
struct ComparedValue {
  double xx = 0, xe = 0, ee = 0;
  double xe_square = 0;
  double relative = 0, shift = 0, magnitude = 0;
  bool is_finite = false, is_nonzero = false;

  constexpr ComparedValue(float before, float after) {
    const double x = before, error = after - x;
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    if (!(x < kInfinity && x > -kInfinity)) return;
    const double size = x < 0 ? -x : x, error_size = error < 0 ? -error : error;
    xx = x * x;
    xe = x * error;
    ee = error * error;
    xe_square = xe * xe;
    shift = error;
    magnitude = size;
    is_finite = true;
    is_nonzero = x != 0;
    if (is_nonzero) relative = error_size / size;
  }
};

// Sums of these, in the order of the sample.
struct Comparison {
  double xx = 0, xe = 0, ee = 0, xe_square = 0, relative = 0, shift = 0, magnitude = 0;
  std::int64_t num_finite = 0, num_nonzero = 0;

  constexpr void add(const ComparedValue& value) {
    xx += value.xx;
    xe += value.xe;
    ee += value.ee;
    xe_square += value.xe_square;
    relative += value.relative;
    shift += value.shift;
    magnitude += value.magnitude;
    num_finite += value.is_finite;
    num_nonzero += value.is_nonzero;
  }

  double cosine = 1, relative_error = 0, bias = 0;  // after:

  // The cosine of x and x + e. Few large values may carry nearly all of x x, and what is compared
  // may miss them, but they have hardly a part in the errors: so e e is related to the x x of the
  // whole sample.
  //
  // With e = b x + r, r orthogonal to x, it is (1 + b) / sqrt((1 + b)^2 + r r / x x). Here b is
  // x e / X and r r is e e - (x e)^2 / X, where X is the larger x x of the two: so r r is not
  // negative, by Cauchy and Schwarz, whatever the samples are. The square of a mean x e that is
  // nothing but chance is its variance, and is not taken from e e.
  template <class SquareRoot>
  constexpr void finish(double sample_xx, const SquareRoot& square_root) {
    if (num_finite == 0) return;
    const auto count = static_cast<double>(num_finite);
    const double mean_xe = xe / count, xe_variance = xe_square / count / count;
    cosine = cosine_of(xx / count, mean_xe, ee / count, xe_variance, sample_xx, square_root);
    relative_error = num_nonzero > 0 ? relative / static_cast<double>(num_nonzero) : 0;
    bias = magnitude > 0 ? shift / magnitude : 0;
  }

 private:
  template <class SquareRoot>
  static constexpr double cosine_of(double mean_xx, double mean_xe, double mean_ee,
                                    double xe_variance, double sample_xx,
                                    const SquareRoot& square_root) {
    const double larger_xx = std::max(sample_xx, mean_xx);
    // Nothing left of something is the worst that can be; nothing of nothing is exact.
    if (!(larger_xx > 0)) return 1;
    const double parallel = 1 + mean_xe / larger_xx;
    const double along = std::max(0.0, mean_xe * mean_xe - xe_variance) / larger_xx;
    const double rest = std::max(0.0, mean_ee - along) / sample_xx;
    const double length = square_root(parallel * parallel + rest);
    if (!(length > 0)) return 0;
    const double quotient = parallel / length;
    return quotient < -1 ? -1 : 1 < quotient ? 1 : quotient;
  }
};

// The zeros among the finite values.
constexpr double sparsity_of(std::uint64_t zeros, std::uint64_t num_values,
                             std::uint64_t nonfinite) {
  return static_cast<double>(zeros) /
         static_cast<double>(std::max<std::uint64_t>(1, num_values - nonfinite));
}

// Whether a value exceeded the grid's top, but for rounding.
constexpr bool saturates(double max_abs, double scale, double largest) {
  return max_abs > scale * largest * (1 + 1e-6);
}

}  // namespace slimgrad

#endif  // SLIMGRAD_MATH_DECIDE_GATE_RULES_H_
