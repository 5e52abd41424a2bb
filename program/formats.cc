// slimgrad formats: which split of N bits into exponent and mantissa has the least error.
#include <slimgrad/format_choice.h>

#include <memory>
#include <optional>

#include "program/output.h"
#include "program/subcommand.h"
#include "program/table.h"

namespace slimgrad::program {
namespace {

// A deviation of log2|x|, or a range of them.
struct Spread {
  double low = 0;
  double high = 0;

  double evaluated_at() const { return log2_std_of_range(low, high); }
  FloatFormat best(int bits) const {
    return low == high ? best_format(bits, low) : best_format(bits, low, high);
  }
  std::string text() const {
    return low == high ? number(low) : number(low) + " to " + number(high);
  }
};

// The ranges of Table 2 of the lognormal paper: ResNets on ImageNet and on Cifar.
constexpr Spread kPaperSpreads[] = {{2.5, 4.5}, {3.0, 5.5}};
constexpr int kPaperBits[] = {4, 5, 6, 7, 8};

struct Options {
  std::vector<int> bits;
  std::string log2_std;
  std::string format;
};

Spread parse_spread(const std::string& text) {
  Spread spread;
  if (text.find(':') == std::string::npos)
    spread.low = spread.high = parse_number("--log2-std", text);
  else
    std::tie(spread.low, spread.high) = parse_pair("--log2-std", text, ':');
  if (!(spread.low > 0 && spread.low <= spread.high))
    throw UsageError("--log2-std: expected S > 0 or LOW:HIGH with 0 < LOW <= HIGH, got '" + text +
                     "'");
  return spread;
}

Json choice_json(int bits, const Spread& spread) {
  Json splits = Json::array();
  for (int exponent_bits = 1; exponent_bits < bits; ++exponent_bits) {
    const FloatFormat format(exponent_bits, bits - 1 - exponent_bits);
    splits.push_back({{"format", format.name()},
                      {"relative_error", relative_error(format, spread.evaluated_at())}});
  }
  return {{"bits", bits},
          {"log2_std", {{"low", spread.low}, {"high", spread.high}}},
          {"evaluated_at", spread.evaluated_at()},
          {"best", spread.best(bits).name()},
          {"splits", std::move(splits)}};
}

// Table 2 of the paper: one row a range, one column a width.
std::string paper_table() {
  std::vector<Column> columns = {{"log2_std", Align::kLeft}};
  for (const int bits : kPaperBits) columns.push_back({"FP" + std::to_string(bits)});
  Table table(columns);
  for (const Spread& spread : kPaperSpreads) {
    std::vector<std::string> best = {spread.text()};
    std::vector<std::string> errors = {"  relative error"};
    for (const int bits : kPaperBits) {
      best.push_back(spread.best(bits).name());
      errors.push_back(number(relative_error(spread.best(bits), spread.evaluated_at())));
    }
    table.add(best);
    table.add(errors);
  }
  return "Best sign-exponent-mantissa split for lognormal gradients, by the deviation of log2|x|\n"
         "(Table 2 of the lognormal paper):\n\n" +
         table.text();
}

std::string choice_text(const Json& choice, const Spread& spread) {
  Table table({{"format", Align::kLeft}, {"relative error"}, {"", Align::kLeft}});
  for (const Json& split : choice["splits"])
    table.add({split["format"], number(split["relative_error"]),
               split["format"] == choice["best"] ? "best" : ""});
  std::string heading =
      std::to_string(choice["bits"].get<int>()) + " bits, log2_std " + spread.text();
  if (spread.low != spread.high) heading += " (evaluated at " + number(spread.evaluated_at()) + ")";
  return heading + "\n\n" + table.text();
}

Report report_choices(const Options& options) {
  const bool is_paper_table = options.bits.empty() && options.log2_std.empty();
  std::vector<int> widths(std::begin(kPaperBits), std::end(kPaperBits));
  if (!options.bits.empty()) widths = options.bits;
  std::vector<Spread> spreads(std::begin(kPaperSpreads), std::end(kPaperSpreads));
  if (!options.log2_std.empty()) spreads = {parse_spread(options.log2_std)};

  Report report;
  report.json["choices"] = Json::array();
  for (const Spread& spread : spreads)
    for (const int bits : widths) {
      Json choice = choice_json(bits, spread);
      if (!is_paper_table)
        report.text += (report.text.empty() ? "" : "\n") + choice_text(choice, spread);
      report.json["choices"].push_back(std::move(choice));
    }
  if (is_paper_table) report.text = paper_table();
  return report;
}

// The grid of one format, and its error if a deviation is given.
Report report_format(const Options& options) {
  const FloatFormat format = FloatFormat::parse(options.format);
  Report report;
  report.json = {{"format", format.name()},
                 {"bits", format.bits()},
                 {"exponent_bits", format.exponent_bits()},
                 {"mantissa_bits", format.mantissa_bits()},
                 {"smallest", format.smallest()},
                 {"largest", format.largest()},
                 {"octaves", format.octaves()},
                 {"values", format.values()}};
  Table table({{"", Align::kLeft}, {"", Align::kLeft}});
  table.add({"format", format.name()});
  table.add({"smallest", number(format.smallest())});
  table.add({"largest", number(format.largest())});
  table.add({"octaves", number(format.octaves())});
  if (!options.log2_std.empty()) {
    const Spread spread = parse_spread(options.log2_std);
    const double error = relative_error(format, spread.evaluated_at());
    report.json["log2_std"] = {{"low", spread.low}, {"high", spread.high}};
    report.json["evaluated_at"] = spread.evaluated_at();
    report.json["relative_error"] = error;
    table.add({"relative error", number(error) + " at log2_std " + number(spread.evaluated_at())});
  }
  report.text = table.text() + "\nThe non-negative values at scale 1:\n";
  std::string line;
  for (const double value : format.values()) {
    const std::string text = number(value);
    if (line.size() + 1 + text.size() > 78) {
      report.text += line + '\n';
      line.clear();
    }
    line += ' ' + text;
  }
  report.text += line + '\n';
  return report;
}

Action declare(Flags& flags) {
  auto options = std::make_shared<Options>();
  const Option bits =
      flags.option("--bits", options->bits, "Widths to compare, sign included: 2 to 8")
          .value_name("N[,N...]")
          .separator(',')
          .range(2, 8);
  flags
      .option("--log2-std", options->log2_std,
              "Standard deviation of log2|x|, or a range, which is evaluated at two thirds of it")
      .value_name("S|LOW:HIGH");
  flags.option("--format", options->format, "Describe one format instead, such as 1-5-2")
      .value_name("1-E-M")
      .excludes(bits);
  return [options] {
    return options->format.empty() ? report_choices(*options) : report_format(*options);
  };
}

constexpr char kExample[] = R"help(Example:
  $ slimgrad formats --bits 6 --log2-std 3:5.5
  6 bits, log2_std 3 to 5.5 (evaluated at 4.675)

  format  relative error
  ------  --------------  ----
  1-1-4         0.814437
  1-2-3         0.668181
  1-3-2         0.425328
  1-4-1         0.176575
  1-5-0         0.170683  best)help";

const bool registered = register_subcommand(
    {"formats", "The best low-bit float for a spread of magnitudes", kExample, declare});

}  // namespace
}  // namespace slimgrad::program
