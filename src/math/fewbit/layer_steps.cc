// The step table that an activation layer uses.
#include <slimgrad/steps.h>

#include <cmath>
#include <limits>
#include <optional>

namespace slimgrad {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The float32 before x: "above this" is then "x or above", where torch's derivative is so.
double below(double x) {
  return std::nextafter(static_cast<float>(x), -std::numeric_limits<float>::infinity());
}

StepTable ramp(double at, double level_below) { return {{at}, {level_below, 1.0}, 0, false}; }

// torch: 1 for low < x < high, otherwise 0. The fourth level is that of NaN
// (kernels/fewbit/fewbit.h).
StepTable box(double low, double high) {
  if (low == -high) return {{below(high)}, {1.0, 0.0}, 0, true};
  return {{low, below(high), kInfinity}, {0.0, 1.0, 0.0, 1.0}, 0, false};
}

// The table of an activation with a piecewise constant derivative.
std::optional<StepTable> exact_steps(std::string_view name, const ActivationParams& params) {
  const auto param = [&](std::string_view key, double otherwise) {
    const auto found = params.find(key);
    return found == params.end() ? otherwise : found->second;
  };
  if (name == "relu") return ramp(0, 0);
  if (name == "leaky_relu") return ramp(0, param("negative_slope", 0.01));
  if (name == "threshold") return ramp(param("threshold", 0), 0);
  if (name == "relu6") return box(0, 6);
  if (name == "hardtanh") return box(param("min_val", -1), param("max_val", 1));
  if (name == "hardsigmoid") return StepTable{{below(3)}, {1.0 / 6, 0.0}, 0, true};
  if (name == "hardshrink" || name == "softshrink")
    return StepTable{{param("lambd", 0.5)}, {0.0, 1.0}, 0, true};
  return std::nullopt;
}

}  // namespace

StepTable layer_steps(std::string_view activation, const ActivationParams& params, int bits,
                      double low, double high, StepWeight weight) {
  if (std::optional<StepTable> exact = exact_steps(activation, params)) return *exact;
  return steps(activation_target(activation, params), bits, low, high, weight);
}

}  // namespace slimgrad
