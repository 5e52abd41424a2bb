#include "math/fewbit/inverse_table.h"

#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <numbers>

#include <slimgrad/steps.h>

#include "base/check.h"

namespace slimgrad {
namespace {

// The functions themselves, without cancellation for negative x.
double gelu(double x) { return 0.5 * x * std::erfc(-x / std::numbers::sqrt2); }
double gelu_tanh(double x) {
  constexpr double kScale = std::numbers::sqrt2 * std::numbers::inv_sqrtpi;
  return x / (1 + std::exp(-2 * kScale * x * (1 + 0.044715 * x * x)));
}
double silu(double x) { return x / (1 + std::exp(-x)); }
double mish(double x) { return x * std::tanh(std::log1p(std::exp(x))); }

// The x in [low, high] at which an increasing function is zero, by halving to the last bit.
template <typename F>
double root_of_increasing(F&& f, double low, double high) {
  for (int i = 0; i < 100; ++i) {
    const double middle = 0.5 * (low + high);
    (f(middle) < 0 ? low : high) = middle;
  }
  return 0.5 * (low + high);
}

// The cubic through four points with Chebyshev's abscissas on [0, 1], by divided differences.
std::array<double, 4> cubic_through(const std::array<double, 4>& at,
                                    const std::array<double, 4>& values) {
  std::array<double, 4> d = values;
  for (int order = 1; order < 4; ++order)
    for (int i = 3; i >= order; --i) d[i] = (d[i] - d[i - 1]) / (at[i] - at[i - order]);
  // Newton's form d0 + (f - a0)(d1 + (f - a1)(d2 + (f - a2) d3)), multiplied out from the inside.
  std::array<double, 4> c = {d[3], 0, 0, 0};
  for (int i = 2; i >= 0; --i) {
    for (int k = 3; k > 0; --k) c[k] = c[k - 1] - at[i] * c[k];
    c[0] = d[i] - at[i] * c[0];
  }
  return c;
}

class Builder {
 public:
  Builder(double (*f)(double), std::function<double(double)> slope)
      : f_(f), slope_(std::move(slope)) {
    minimizer_ = root_of_increasing(slope_, -3, -0.1);
    minimum_ = f_(minimizer_);
    table_.minimum = static_cast<float>(minimum_);
    table_.minimizer = static_cast<float>(minimizer_);
    table_.split = static_cast<float>(-0.5 * minimum_);
  }

  InverseTable build() {
    constexpr double kFarLeft = -60, kFarRight = 64;
    const auto right = [&](double u) {
      return root_of_increasing([&](double x) { return f_(x) - minimum_ - u; }, minimizer_,
                                kFarRight);
    };
    const auto left = [&](double y) {  // there f decreases
      return root_of_increasing([&](double x) { return y - f_(x); }, kFarLeft, minimizer_);
    };
    fill(0, InverseTable::kNumRight, InverseTable::kUpperBitsU, right);
    fill(InverseTable::kNumRight, InverseTable::kNumNear, InverseTable::kUpperBitsU,
         [&](double u) { return left(minimum_ + u); });
    fill(InverseTable::kNumRight + InverseTable::kNumNear, InverseTable::kNumTail,
         InverseTable::kUpperBitsV, [&](double v) { return left(-v); });
    return table_;
  }

 private:
  // `input` gives x for a value of the range's variable.
  template <typename Input>
  void fill(std::int32_t first, std::int32_t count, std::int32_t upper_bits, Input&& input) {
    const auto edge = [&](std::int32_t i) {
      return static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(upper_bits + i)
                                                      << InverseTable::kPieceShift));
    };
    std::array<double, 4> at, slopes;
    for (int k = 0; k < 4; ++k) at[k] = 0.5 - 0.5 * std::cos((2 * k + 1) * std::numbers::pi / 8);
    for (std::int32_t i = 0; i < count; ++i) {
      const double low = edge(i), high = edge(i + 1);
      for (int k = 0; k < 4; ++k) slopes[k] = slope_(input(low + at[k] * (high - low)));
      const std::array<double, 4> cubic = cubic_through(at, slopes);
      for (int k = 0; k < 4; ++k)
        table_.coefficients[static_cast<std::size_t>(4 * (first + i) + k)] =
            static_cast<float>(cubic[k]);
    }
  }

  double (*f_)(double);
  std::function<double(double)> slope_;
  double minimizer_ = 0;
  double minimum_ = 0;
  InverseTable table_;
};

template <double (*f)(double)>
const InverseTable& kept(std::string_view name) {
  static const InverseTable table = Builder(f, activation_target(name).derivative).build();
  return table;
}

}  // namespace

const InverseTable& inverse_table(std::string_view activation) {
  if (activation == "gelu") return kept<gelu>(activation);
  if (activation == "gelu_tanh") return kept<gelu_tanh>(activation);
  if (activation == "silu") return kept<silu>(activation);
  if (activation == "mish") return kept<mish>(activation);
  throw_invalid("inverse_table", "gelu, gelu_tanh, silu or mish", '\'', activation, '\'');
}

}  // namespace slimgrad
