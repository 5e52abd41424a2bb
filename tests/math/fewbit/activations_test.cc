#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <numbers>

#include <slimgrad/error.h>
#include <slimgrad/steps.h>

namespace slimgrad {
namespace {

// The activations themselves, from their definitions: the derivatives are compared with difference
// quotients of these.
const std::map<std::string, std::function<double(double)>>& activations() {
  static const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  static const auto softplus = [](double x) { return std::log1p(std::exp(x)); };
  static const std::map<std::string, std::function<double(double)>> all = {
      {"relu", [](double x) { return std::max(x, 0.0); }},
      {"leaky_relu", [](double x) { return x > 0 ? x : 0.01 * x; }},
      {"threshold", [](double x) { return x > 0 ? x : 0; }},
      {"relu6", [](double x) { return std::clamp(x, 0.0, 6.0); }},
      {"hardtanh", [](double x) { return std::clamp(x, -1.0, 1.0); }},
      {"hardsigmoid", [](double x) { return std::clamp(x / 6 + 0.5, 0.0, 1.0); }},
      {"hardshrink", [](double x) { return std::abs(x) > 0.5 ? x : 0; }},
      {"softshrink", [](double x) { return x > 0.5    ? x - 0.5
                                           : x < -0.5 ? x + 0.5
                                                      : 0; }},
      {"hardswish", [](double x) { return x * std::clamp(x + 3, 0.0, 6.0) / 6; }},
      {"gelu", [](double x) { return x * 0.5 * (1 + std::erf(x / std::numbers::sqrt2)); }},
      {"gelu_erf", [](double x) { return x * 0.5 * (1 + std::erf(x / std::numbers::sqrt2)); }},
      {"gelu_tanh",
       [](double x) {
         return 0.5 * x *
                (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
       }},
      {"quick_gelu", [](double x) { return x * sigmoid(1.702 * x); }},
      {"silu", [](double x) { return x * sigmoid(x); }},
      {"mish", [](double x) { return x * std::tanh(softplus(x)); }},
      {"sigmoid", sigmoid},
      {"logsigmoid", [](double x) { return -softplus(-x); }},
      {"tanh", [](double x) { return std::tanh(x); }},
      {"tanhshrink", [](double x) { return x - std::tanh(x); }},
      {"softsign", [](double x) { return x / (1 + std::abs(x)); }},
      {"softplus", softplus},
      {"elu", [](double x) { return x > 0 ? x : std::expm1(x); }},
      {"celu", [](double x) { return x > 0 ? x : std::expm1(x); }},
      {"selu",
       [](double x) {
         return 1.0507009873554805 * (x > 0 ? x : 1.6732632423543772 * std::expm1(x));
       }},
  };
  return all;
}

// A five-point difference quotient: rounding about 1e-13 / h, truncation h^4 f^(5) / 30.
double slope(const std::function<double(double)>& f, double x) {
  const double h = 1e-3;
  return (8 * (f(x + h) - f(x - h)) - (f(x + 2 * h) - f(x - 2 * h))) / (12 * h);
}

TEST(Activations, DerivativesAreDerivatives) {
  ASSERT_EQ(activation_names().size(), activations().size());
  for (const std::string_view name : activation_names()) {
    const auto& f = activations().at(std::string(name));
    const StepTarget target = activation_target(name);
    // An offset that keeps every stencil clear of the breaks.
    for (double x = -12.0317; x < 12; x += 0.0441)
      EXPECT_NEAR(target.derivative(x), slope(f, x), 3e-10) << name << " at " << x;
  }
}

TEST(Activations, EvenOnesAreEvenAndNoOthers) {
  for (const std::string_view name : activation_names()) {
    const StepTarget target = activation_target(name);
    bool even = true;
    for (double x = 0.013; x < 12; x += 0.1)
      even = even && target.derivative(x) == target.derivative(-x);
    EXPECT_EQ(target.even, even) << name;
  }
}

TEST(Activations, AreFiniteFarOut) {
  for (const std::string_view name : activation_names())
    for (const double x : {-1e300, -1e20, -800.0, -40.0, -0.0, 0.0, 5e-324, 40.0, 800.0, 1e300})
      EXPECT_TRUE(std::isfinite(activation_target(name).derivative(x))) << name << " at " << x;
}

TEST(Activations, ParametersHaveTheirMeaning) {
  const auto at = [](std::string_view name, const ActivationParams& params, double x) {
    return activation_target(name, params).derivative(x);
  };
  EXPECT_DOUBLE_EQ(at("elu", {{"alpha", 0.5}}, -2), 0.5 * std::exp(-2.0));
  EXPECT_DOUBLE_EQ(at("celu", {{"alpha", 0.5}}, -2), std::exp(-4.0));
  EXPECT_DOUBLE_EQ(at("softplus", {{"beta", 3}}, 0.7), 1 / (1 + std::exp(-2.1)));
  EXPECT_DOUBLE_EQ(at("softplus", {{"beta", 3}, {"threshold", 2}}, 0.6), 1 / (1 + std::exp(-1.8)));
  EXPECT_EQ(at("softplus", {{"beta", 3}, {"threshold", 2}}, 0.7), 1);
  EXPECT_LT(at("softplus", {{"threshold", INFINITY}}, 25), 1);
  EXPECT_EQ(at("leaky_relu", {{"negative_slope", 0.2}}, -2), 0.2);
  EXPECT_EQ(at("hardshrink", {{"lambd", 2}}, 1.5), 0);
  EXPECT_EQ(at("softshrink", {{"lambd", 1}}, 1.5), 1);
  EXPECT_EQ(at("hardtanh", {{"min_val", -3}, {"max_val", 2}}, -2.5), 1);
  EXPECT_EQ(at("threshold", {{"threshold", 1}}, 0.5), 0);
  EXPECT_FALSE(activation_target("hardtanh", {{"max_val", 2}}).even);
  EXPECT_TRUE(activation_target("hardtanh", {{"min_val", -2}, {"max_val", 2}}).even);
}

TEST(Activations, RefuseWhatTheyDoNotHave) {
  EXPECT_THROW(activation_target("gelu", {{"alpha", 1}}), InvalidArgument);
  EXPECT_THROW(activation_target("elu", {{"beta", 1}}), InvalidArgument);
  EXPECT_THROW(activation_target("elu", {{"alpha", 1}, {"beta", 1}}), InvalidArgument);
  EXPECT_THROW(activation_target("elu", {{"alpha", NAN}}), InvalidArgument);
  EXPECT_THROW(activation_target("celu", {{"alpha", 0}}), InvalidArgument);
  EXPECT_THROW(activation_target("softplus", {{"beta", -1}}), InvalidArgument);
  EXPECT_THROW(activation_target("hardtanh", {{"min_val", 1}}), InvalidArgument);
  EXPECT_THROW(activation_target("GELU"), InvalidArgument);
  EXPECT_THROW(activation_target(""), InvalidArgument);
  try {
    activation_target("gelu", {{"alpha", 1}});
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(),
                 "[activation_target] expected only parameters that gelu has, got alpha");
  }
}

}  // namespace
}  // namespace slimgrad
