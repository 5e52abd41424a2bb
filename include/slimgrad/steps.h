// The best step function for an activation's derivative: 2^bits constant pieces that minimise the
// weighted squared error. With it an activation saves `bits` bits per element for backward.
//
// Surprises. For activations with an even derivative (sigmoid, tanh, softsign, tanhshrink,
// hardsigmoid, ...) the table is one over |x|; StepTable::even says so. Where the derivative is
// piecewise constant (ReLU and kin) the table is exact, and if it has fewer pieces than 2^bits, the
// widest ones are cut in half until the count is right: neighbouring levels may then be equal, but
// borders always ascend strictly, so that the same search applies every table. An optimum need not
// be unique: a mirror image can be as good. Pure functions; any thread may call them.
#ifndef SLIMGRAD_STEPS_H_
#define SLIMGRAD_STEPS_H_

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace slimgrad {

struct StepTable {
  std::vector<double> borders;  // inner ones, strictly ascending: one fewer than levels
  std::vector<double> levels;   // levels[i] holds for borders[i-1] < x <= borders[i]
  double error = 0;             // integral of (f' - q)^2 w over the interval
  bool even = false;            // borders are of |x|; `error` counts both sides
};

enum class StepWeight {
  kUniform,  // w = 1 on the interval
  kNormal,   // w = standard normal density, cut to the interval: for normalised inputs
};

StepWeight parse_step_weight(std::string_view name);  // "uniform", "normal"

// A derivative to approximate.
struct StepTarget {
  std::function<double(double)> derivative;
  // Where the derivative, or the weight it will be used with, jumps or has a kink (at zero for ReLU
  // and SELU, at +-3 for hardswish). Cells are integrated between these points by smooth
  // quadrature, and borders may stay on a jump. Naming the middle of a narrow feature in a wide
  // interval is also worth it: the mesh is graded towards every point named here. Points outside
  // the interval are ignored.
  std::vector<double> breaks;
  // f'(-x) = f'(x): the table is made for |x|. The weight need not be even and the interval need
  // not be symmetric: x and -x count together, each where it lies in the interval.
  bool even = false;
};

// Parameters by torch's names: {{"alpha", 0.5}}.
using ActivationParams = std::map<std::string, double, std::less<>>;

// The names of the built-in activations: "relu", "gelu", "gelu_tanh", "silu", ...
std::vector<std::string_view> activation_names();

// The derivative of an activation. Parameters that are left out have torch's defaults:
//   elu, celu: alpha = 1; leaky_relu: negative_slope = 0.01; softplus: beta = 1, threshold = 20;
//   hardshrink, softshrink: lambd = 0.5; hardtanh: min_val = -1, max_val = 1; threshold: threshold
//   = 0. Others take none. "gelu_erf" is another name for "gelu".
// At a jump itself, a table gives the level of the left piece; torch sometimes takes the right one.
// Throws InvalidArgument for an unknown name, and for a parameter it does not have or cannot use.
StepTarget activation_target(std::string_view name, const ActivationParams& params = {});

// The optimal table, 1 to 5 bits: globally optimal up to the resolution of the search's grid, then
// polished until the optimality conditions hold to rounding. A few milliseconds. Throws
// InvalidArgument for other widths, an empty or infinite interval, a derivative that is not finite
// (or not even though it says so), and a weight that is not finite and non-negative or is zero
// throughout.
StepTable steps(std::string_view activation, int bits = 3, double low = -10, double high = 10,
                StepWeight weight = StepWeight::kUniform);
StepTable steps(const StepTarget& target, int bits, double low, double high,
                StepWeight weight = StepWeight::kUniform);
StepTable steps(const StepTarget& target, int bits, double low, double high,
                const std::function<double(double)>& weight);

// The table that an activation layer uses: steps(), but where the derivative is piecewise
// constant exact in float32, with the 1 or 2 bits that takes and torch's side of every jump.
StepTable layer_steps(std::string_view activation, const ActivationParams& params, int bits,
                      double low = -10, double high = 10, StepWeight weight = StepWeight::kNormal);

}  // namespace slimgrad

#endif  // SLIMGRAD_STEPS_H_
