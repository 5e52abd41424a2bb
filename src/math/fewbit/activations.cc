// The derivatives of the activation functions: what to approximate, where it is not smooth, and
// whether it is even. All are finite for every finite argument.
#include <cmath>
#include <numbers>

#include <slimgrad/steps.h>

#include "base/check.h"

namespace slimgrad {
namespace {

constexpr std::string_view kOp = "activation_target";

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// sigmoid' without the cancellation in s (1 - s): with e = exp(-|x|) it is e / (1 + e)^2.
double sigmoid_slope(double x) {
  const double e = std::exp(-std::abs(x));
  return e / ((1 + e) * (1 + e));
}

// (x s(x))' = s + x s'.
double silu_slope(double x) { return sigmoid(x) + x * sigmoid_slope(x); }

// (x Phi(x))' = Phi + x phi.
double gelu_slope(double x) {
  constexpr double kInvSqrt2Pi = std::numbers::inv_sqrtpi / std::numbers::sqrt2;
  return 0.5 * std::erfc(-x / std::numbers::sqrt2) + x * kInvSqrt2Pi * std::exp(-0.5 * x * x);
}

// With u = c (x + 0.044715 x^3), (x/2 (1 + tanh u))' = (1 + tanh u)/2 + x/2 sech^2(u) u', and
// (1 + tanh u)/2 = sigmoid(2u), sech^2(u) = 4 sigmoid'(2u).
double gelu_tanh_slope(double x) {
  if (std::abs(x) > 20) return x > 0 ? 1 : 0;  // to the last bit; x^3 could overflow
  constexpr double kScale = std::numbers::sqrt2 * std::numbers::inv_sqrtpi;
  constexpr double kCubic = 0.044715;
  const double u = kScale * x * (1 + kCubic * x * x);
  const double u_slope = kScale * (1 + 3 * kCubic * x * x);
  return sigmoid(2 * u) + 2 * x * sigmoid_slope(2 * u) * u_slope;
}

// (x tanh(softplus x))' = t + x (1 - t^2) s.
double mish_slope(double x) {
  const double t = std::tanh(x > 40 ? x : std::log1p(std::exp(x)));
  return t + x * (1 - t * t) * sigmoid(x);
}

double softsign_slope(double x) {
  const double d = 1 + std::abs(x);
  return 1 / (d * d);
}

// `inside` between the two ends, `outside` beyond: most of the hard activations.
StepTarget box(double low, double high, double inside, double outside) {
  return {
      [=](double x) { return x > low && x < high ? inside : outside; }, {low, high}, low == -high};
}

// `below` up to `at`, 1 above.
StepTarget ramp(double at, double below) {
  return {[=](double x) { return x > at ? 1.0 : below; }, {at}};
}

StepTarget exponential_unit(double scale, double alpha, double width) {
  return {[=](double x) { return scale * (x > 0 ? 1.0 : alpha * std::exp(x / width)); }, {0.0}};
}

// Smooth ones name zero too, so that the mesh looks closely there in a wide interval.
StepTarget smooth(double (*slope)(double), bool even = false) { return {slope, {0.0}, even}; }

// Reads the parameters an activation has and at the end refuses those that it has not.
class Parameters {
 public:
  Parameters(std::string_view activation, const ActivationParams& given)
      : activation_(activation), given_(given) {}

  double take(std::string_view name, double otherwise) {
    const double value = take_any(name, otherwise);
    check(std::isfinite(value), kOp, "a finite " + std::string(name), value);
    return value;
  }
  double take_any(std::string_view name, double otherwise) {
    const auto found = given_.find(name);
    if (found == given_.end()) return otherwise;
    ++num_taken_;
    return found->second;
  }
  double take_positive(std::string_view name, double otherwise) {
    const double value = take(name, otherwise);
    check(value > 0, kOp, std::string(name) + " > 0", value);
    return value;
  }

  void finish() const {
    if (num_taken_ == given_.size()) return;
    std::string names;
    for (const auto& [name, value] : given_) names += " " + name;
    throw_invalid(kOp, "only parameters that " + std::string(activation_) + " has",
                  names.substr(1));
  }

 private:
  std::string_view activation_;
  const ActivationParams& given_;
  std::size_t num_taken_ = 0;
};

struct Activation {
  std::string_view name;
  StepTarget (*target)(Parameters&);
};

constexpr Activation kActivations[] = {
    {"relu", [](Parameters&) { return ramp(0, 0); }},
    {"leaky_relu", [](Parameters& p) { return ramp(0, p.take("negative_slope", 0.01)); }},
    {"threshold", [](Parameters& p) { return ramp(p.take("threshold", 0), 0); }},
    {"relu6", [](Parameters&) { return box(0, 6, 1, 0); }},
    {"hardtanh",
     [](Parameters& p) {
       const double low = p.take("min_val", -1), high = p.take("max_val", 1);
       check(low < high, kOp, "min_val < max_val", low, " and ", high);
       return box(low, high, 1, 0);
     }},
    {"hardsigmoid", [](Parameters&) { return box(-3, 3, 1.0 / 6, 0); }},
    {"hardshrink",
     [](Parameters& p) {
       const double edge = p.take_positive("lambd", 0.5);
       return box(-edge, edge, 0, 1);
     }},
    {"softshrink",
     [](Parameters& p) {
       const double edge = p.take_positive("lambd", 0.5);
       return box(-edge, edge, 0, 1);
     }},
    {"hardswish",
     [](Parameters&) -> StepTarget {
       return {[](double x) { return x <= -3 ? 0 : x > 3 ? 1 : x / 3 + 0.5; }, {-3.0, 0.0, 3.0}};
     }},
    {"gelu", [](Parameters&) { return smooth(gelu_slope); }},
    {"gelu_erf", [](Parameters&) { return smooth(gelu_slope); }},
    {"gelu_tanh", [](Parameters&) { return smooth(gelu_tanh_slope); }},
    {"quick_gelu",
     [](Parameters&) { return smooth([](double x) { return silu_slope(1.702 * x); }); }},
    {"silu", [](Parameters&) { return smooth(silu_slope); }},
    {"mish", [](Parameters&) { return smooth(mish_slope); }},
    {"sigmoid", [](Parameters&) { return smooth(sigmoid_slope, true); }},
    {"logsigmoid", [](Parameters&) { return smooth([](double x) { return sigmoid(-x); }); }},
    {"tanh",
     [](Parameters&) { return smooth([](double x) { return 4 * sigmoid_slope(2 * x); }, true); }},
    {"tanhshrink",
     [](Parameters&) {
       return smooth([](double x) { return std::tanh(x) * std::tanh(x); }, true);
     }},
    {"softsign", [](Parameters&) { return smooth(softsign_slope, true); }},
    {"softplus",
     [](Parameters& p) -> StepTarget {
       const double beta = p.take_positive("beta", 1);
       const double threshold = p.take_any("threshold", 20);  // torch's is the identity above it
       const double jump = std::isfinite(threshold / beta) ? threshold / beta : 0;
       return {[=](double x) { return beta * x > threshold ? 1.0 : sigmoid(beta * x); },
               {0.0, jump}};
     }},
    {"elu", [](Parameters& p) { return exponential_unit(1, p.take("alpha", 1), 1); }},
    {"celu", [](Parameters& p) { return exponential_unit(1, 1, p.take_positive("alpha", 1)); }},
    {"selu",
     [](Parameters&) { return exponential_unit(1.0507009873554805, 1.6732632423543772, 1); }},
};

}  // namespace

std::vector<std::string_view> activation_names() {
  std::vector<std::string_view> names;
  for (const Activation& activation : kActivations) names.push_back(activation.name);
  return names;
}

StepTarget activation_target(std::string_view name, const ActivationParams& params) {
  std::string expected = "activation to be one of";
  for (const Activation& activation : kActivations) {
    if (activation.name == name) {
      Parameters parameters(name, params);
      StepTarget target = activation.target(parameters);
      parameters.finish();
      return target;
    }
    expected.append(" ").append(activation.name);
  }
  throw_invalid(kOp, expected, '\'', name, '\'');
}

}  // namespace slimgrad
