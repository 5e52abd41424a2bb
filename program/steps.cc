// slimgrad steps: the best step function for the derivative of an activation.
#include <slimgrad/steps.h>

#include <cmath>
#include <memory>

#include "program/output.h"
#include "program/subcommand.h"
#include "program/table.h"

namespace slimgrad::program {
namespace {

struct Options {
  std::string activation;
  int bits = 3;
  std::string interval = "-10,10";
  std::string weight = "uniform";
  bool list = false;
};

Report report_names() {
  Report report;
  report.json["activations"] = activation_names();
  for (const std::string_view name : activation_names()) report.text += std::string(name) + '\n';
  return report;
}

// A border that lies at zero but for rounding errors is shown there.
double shown(double border, double low, double high) {
  return std::abs(border) < 1e-12 * (high - low) ? 0 : border;
}

std::string steps_text(const StepTable& steps, double low, double high) {
  Table table({{"code"}, {steps.even ? "from |x| >" : "from x >"}, {"to"}, {"level"}});
  for (std::size_t i = 0; i < steps.levels.size(); ++i) {
    const double from = i == 0 ? (steps.even ? 0 : low) : steps.borders[i - 1];
    const double to = i == steps.borders.size() ? high : steps.borders[i];
    table.add({std::to_string(i), number(from), number(to), number(steps.levels[i])});
  }
  return table.text();
}

Report report_steps(const Options& options) {
  const auto [low, high] = parse_pair("--interval", options.interval, ',');
  StepTable steps = slimgrad::steps(options.activation, options.bits, low, high,
                                    parse_step_weight(options.weight));
  for (double& border : steps.borders) border = shown(border, low, high);
  Report report;
  report.json = {
      {"activation", options.activation}, {"bits", options.bits}, {"interval", {low, high}},
      {"weight", options.weight},         {"even", steps.even},   {"borders", steps.borders},
      {"levels", steps.levels},           {"error", steps.error}};
  report.text = "The derivative of " + options.activation + " with " +
                std::to_string(options.bits) + " bits, " + options.weight + " weight on [" +
                number(low) + ", " + number(high) + "]" +
                (steps.even ? "; it is even, so the steps are over |x|" : "") + "\n\n" +
                steps_text(steps, low, high) + "\nsquared error " + number(steps.error) + '\n';
  return report;
}

Action declare(Flags& flags) {
  auto options = std::make_shared<Options>();
  const std::vector<std::string_view> names = activation_names();
  flags.option("ACTIVATION", options->activation, "One of the names that --list prints")
      .value_name("")
      .offer({names.begin(), names.end()});
  flags.option("--bits", options->bits, "Bits per element: 2^bits steps")
      .show_default()
      .value_name("N")
      .range(1, 5);
  flags.option("--interval", options->interval, "Interval over which the error is integrated")
      .show_default()
      .value_name("LOW,HIGH");
  flags
      .option("--weight", options->weight,
              "uniform, or normal: the standard normal density, for normalised inputs")
      .show_default()
      .value_name("NAME")
      .offer({"uniform", "normal"});
  flags.flag("--list", options->list, "Print the names of the activations");
  return [options] {
    if (options->list && !options->activation.empty())
      throw UsageError("steps: expected an activation or --list, got both");
    if (options->list) return report_names();
    if (options->activation.empty())
      throw UsageError("steps: name an activation; --list prints the names");
    return report_steps(*options);
  };
}

constexpr char kExample[] = R"help(Example:
  $ slimgrad steps silu --bits 2
  The derivative of silu with 2 bits, uniform weight on [-10, 10]

  code   from x >         to       level
  ----  ---------  ---------  ----------
     0        -10  -0.789277  -0.0267141
     1  -0.789277          0    0.312324
     2          0   0.789277    0.687676
     3   0.789277         10     1.02671

  squared error 0.0478495)help";

const bool registered = register_subcommand(
    {"steps", "The best step function for an activation's derivative", kExample, declare});

}  // namespace
}  // namespace slimgrad::program
