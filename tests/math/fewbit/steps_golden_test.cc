#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <string>

#include <slimgrad/steps.h>

#include "golden.h"
#include "math/fewbit/step_oracle.h"

namespace slimgrad {
namespace {

// f'(border) = mean of the neighbours, or the one-sided limits lie on either side of it.
void expect_stationary(const StepTable& table, const StepTarget& target) {
  for (std::size_t i = 0; i < table.borders.size(); ++i) {
    const double middle = (table.levels[i] + table.levels[i + 1]) / 2, at = table.borders[i];
    const double below = target.derivative(std::nextafter(at, -1e9)) - middle;
    const double above = target.derivative(std::nextafter(at, 1e9)) - middle;
    if (below * above < 0 && std::abs(below - above) > 1e-6) continue;
    EXPECT_NEAR(target.derivative(at), middle, 1e-11) << "border " << i << " at " << at;
  }
}

struct Measure {
  std::string name;
  double half_width;
  StepWeight kind;
  Function weight;
};

std::vector<Measure> golden_measures() {
  const Function one = [](double) { return 1.0; };
  return {{"uniform_[-10,10]", 10, StepWeight::kUniform, one},
          {"normal", 10, StepWeight::kNormal, normal_density},
          {"uniform_[-100,100]", 100, StepWeight::kUniform, one},
          {"uniform_[-10,10]_even", 10, StepWeight::kUniform, one},
          {"normal_even", 10, StepWeight::kNormal, normal_density}};
}

// Every activation, measure and width of the reference file. The derivatives that are even are
// there twice, folded and not; unfolded means a target that does not say it is even.
TEST(StepsGolden, GoldenErrorsTrueErrorsAndStationarity) {
  const auto activations = golden("fewbit.json").at("activations");
  int num_cases = 0;
  for (const auto& [name, measures] : activations.items()) {
    for (const Measure& measure : golden_measures()) {
      if (!measures.contains(measure.name)) continue;
      StepTarget target = activation_target(name);
      const bool even = measure.name.ends_with("_even");
      ASSERT_TRUE(target.even || !even) << name;
      target.even = even;
      for (const auto& [bits_text, expected] : measures.at(measure.name).items()) {
        const int bits = std::stoi(bits_text);
        if (bits == 0) continue;
        SCOPED_TRACE(name + " " + measure.name + " " + bits_text);
        const double end = measure.half_width;
        const StepTable table = steps(target, bits, -end, end, measure.kind);
        const double error = expected.at(even ? "error_two_sided" : "error").template get<double>();
        EXPECT_NEAR(table.error, error, 1e-9 * error + 1e-25);
        EXPECT_EQ(table.even, even);
        expect_well_formed(table, bits);
        expect_stationary(table, target);
        EXPECT_NEAR(integrate_error(table, target, -end, end, measure.weight), table.error,
                    1e-9 * table.error + 1e-25);
        ++num_cases;
      }
    }
  }
  EXPECT_EQ(num_cases, 242);
}

TEST(StepsGolden, UniqueOptimaHaveTheGoldenBorders) {
  const auto activations = golden("fewbit.json").at("activations");
  for (const char* name : {"softplus", "elu", "selu", "hardswish"}) {
    const auto& expected = activations.at(name).at("normal").at("3");
    if (expected.value("mirror_twin_equally_optimal", false)) continue;
    const StepTable table = steps(name, 3, -10, 10, StepWeight::kNormal);
    const auto borders = expected.at("borders").get<std::vector<double>>();
    const auto levels = expected.at("levels").get<std::vector<double>>();
    for (std::size_t i = 0; i < 7; ++i) EXPECT_NEAR(table.borders[i], borders[i + 1], 1e-9) << name;
    for (std::size_t i = 0; i < 8; ++i) EXPECT_NEAR(table.levels[i], levels[i], 1e-10) << name;
  }
}

TEST(StepsGolden, PublishedErrors) {
  // Errors for 1 to 4 bits on -10 .. 10, as in the method's table.
  const auto expect = [](const char* name, std::array<double, 4> errors) {
    for (int bits = 1; bits <= 4; ++bits)
      EXPECT_NEAR(steps(name, bits).error, errors[bits - 1], 6e-7) << name << bits;
  };
  expect("gelu", {.141047, .040563, .011898, .003140});
  expect("silu", {.214978, .047849, .017018, .004464});
  expect("sigmoid", {.018074, .003783, .000878, .000212});
  expect("tanh", {.158400, .031910, .007264, .001739});
  expect("selu", {.255348, .101005, .018380, .003909});
  expect("softplus", {.290216, .054050, .012117, .002896});
}

}  // namespace
}  // namespace slimgrad
