// The best step function for an activation's derivative: 2^bits constant pieces that minimise the
// weighted squared error. With it an activation keeps `bits` bits an element for backward.
//
// Surprise: for activations with an even derivative (sigmoid, tanh, softsign, tanhshrink) the table
// is one over |x|; StepTable::even says so. Pure functions.
#ifndef SLIMGRAD_STEPS_H_
#define SLIMGRAD_STEPS_H_

#include <functional>
#include <span>
#include <string_view>
#include <vector>

namespace slimgrad {

struct StepTable {
  std::vector<double> borders;  // inner ones, ascending: one fewer than levels
  std::vector<double> levels;   // levels[i] holds for borders[i-1] < x <= borders[i]
  double error = 0;             // integral of (f' - q)^2 w over the interval
  bool even = false;            // borders are of |x|; `error` counts both sides
};

enum class StepWeight {
  kUniform,  // w = 1 on the interval
  kNormal,   // w = standard normal density, cut to the interval: for normalised inputs
};

StepWeight parse_step_weight(std::string_view name);

// A derivative to approximate. Where it jumps or has a kink (at zero for ReLU and SELU, at +-3 for
// hardswish) `breaks` must say so: cells are integrated between them by smooth quadrature.
struct StepTarget {
  std::function<double(double)> derivative;
  std::vector<double> breaks;
  bool even = false;
};

// The names of the built-in activations: "relu", "gelu", "gelu_tanh", "silu", ...
std::vector<std::string_view> activation_names();
StepTarget activation_target(std::string_view name);  // throws InvalidArgument

// The optimal table, 1 to 5 bits. Throws InvalidArgument for other widths, an empty interval or a
// weight that is not finite and non-negative.
StepTable optimal_steps(std::string_view activation, int bits, double low = -10, double high = 10,
                        StepWeight weight = StepWeight::kUniform);
StepTable optimal_steps(const StepTarget& target, int bits, double low, double high,
                        const std::function<double(double)>& weight);

}  // namespace slimgrad

#endif  // SLIMGRAD_STEPS_H_
