// slimgrad threshold: the pruning threshold for a wanted sparsity, and what it costs.
#include <slimgrad/error.h>
#include <slimgrad/threshold.h>

#include <cmath>
#include <memory>
#include <optional>

#include "program/output.h"
#include "program/subcommand.h"
#include "program/table.h"
#include "program/tensor_files.h"

namespace slimgrad::program {
namespace {

constexpr ThresholdMethod kAllMethods[] = {ThresholdMethod::kEmpirical, ThresholdMethod::kLognormal,
                                           ThresholdMethod::kGennorm, ThresholdMethod::kNormal,
                                           ThresholdMethod::kMean};

struct Options {
  TensorFileOptions files;
  double sparsity = 0;
  std::string method;
  std::optional<double> log_mean;
  std::optional<double> log_std;
  std::optional<double> zero_fraction;
};

Json threshold_json(const TensorStats& stats, double sparsity, ThresholdMethod method) {
  const Threshold found = threshold(stats, sparsity, method);
  return {{"method", method_name(method)},
          {"threshold", found.value},
          {"sparsity", found.sparsity},
          {"at_threshold", found.at_threshold},
          {"survivors", found.survivors},
          {"cosine", expected_cosine(stats, found.value, method)},
          {"nothing_to_prune", found.nothing_to_prune}};
}

// What the method's threshold does to this tensor, by its histogram: a wrong law shows here.
void add_outcome(Json& row, const TensorStats& stats) {
  const double alpha = row["threshold"];
  row["sparsity_on_tensor"] = expected_sparsity(stats, alpha, ThresholdMethod::kEmpirical);
  row["cosine_on_tensor"] = expected_cosine(stats, alpha, ThresholdMethod::kEmpirical);
}

std::string nothing_to_prune_note(double zero_fraction, double sparsity) {
  return "Note: " + percent(zero_fraction) + " are zero already, no less than the wanted " +
         percent(sparsity) + ": nothing to prune, threshold 0.\n";
}

std::string thresholds_text(const Json& rows, bool with_outcome) {
  std::vector<Column> columns = {{"method", Align::kLeft}, {"threshold"}, {"expected sparsity"},
                                 {"at +-threshold"},       {"survivors"}, {"expected cosine"}};
  if (with_outcome) columns.insert(columns.end(), {{"sparsity on tensor"}, {"cosine on tensor"}});
  Table table(columns);
  std::string notes;
  for (const Json& row : rows) {
    std::vector<std::string> cells = {row["method"]};
    if (row.contains("error")) {
      notes += "Note: " + row["error"].get<std::string>() + '\n';
    } else {
      for (const char* key : {"threshold", "sparsity", "at_threshold", "survivors", "cosine",
                              "sparsity_on_tensor", "cosine_on_tensor"})
        if (row.contains(key)) cells.push_back(number(row[key]));
    }
    table.add(cells);
  }
  return table.text() + notes;
}

Report report_law(const Options& options) {
  if (!options.log_mean || !options.log_std)
    throw UsageError("threshold: expected FILE, or both --log-mean and --log-std");
  if (!options.method.empty() && options.method != "lognormal")
    throw UsageError("--method " + options.method + " needs a FILE");
  const double zero_fraction = options.zero_fraction.value_or(0);
  const TensorStats stats = lognormal_stats(*options.log_mean, *options.log_std, zero_fraction);
  const Json row = threshold_json(stats, options.sparsity, ThresholdMethod::kLognormal);
  Report report;
  report.json = {{"log_mean", *options.log_mean},
                 {"log_std", *options.log_std},
                 {"zero_fraction", zero_fraction},
                 {"wanted_sparsity", options.sparsity},
                 {"thresholds", Json::array({row})}};
  report.text = thresholds_text(report.json["thresholds"], false);
  if (row["nothing_to_prune"])
    report.text += nothing_to_prune_note(zero_fraction, options.sparsity);
  return report;
}

// One method, whose failure is an error; or all, where one that does not apply says so in its row.
Json rows_of(const TensorStats& stats, const Options& options) {
  Json rows = Json::array();
  if (!options.method.empty()) {
    rows.push_back(threshold_json(stats, options.sparsity, parse_threshold_method(options.method)));
    add_outcome(rows.back(), stats);
    return rows;
  }
  for (const ThresholdMethod method : kAllMethods) {
    try {
      rows.push_back(threshold_json(stats, options.sparsity, method));
      add_outcome(rows.back(), stats);
    } catch (const InvalidArgument& error) {
      rows.push_back({{"method", method_name(method)}, {"error", error.what()}});
    }
  }
  return rows;
}

Report report_files(const Options& options) {
  if (options.log_mean || options.log_std || options.zero_fraction)
    throw UsageError("threshold: expected FILE or --log-mean and --log-std, got both");
  if (!options.method.empty()) parse_threshold_method(options.method);  // before reading anything
  Report report;
  report.json = {{"wanted_sparsity", options.sparsity}, {"files", Json::array()}};
  std::string sections;
  for_each_tensor(options.files, "measuring", 1, report,
                  [&](const FloatTensor& tensor, Progress& progress) {
                    const MeasuredTensor measured = measure_tensor(tensor, progress);
                    const double zero_fraction = measured.stats.zero_fraction;
                    Json entry = describe(tensor);
                    entry["zero_fraction"] = zero_fraction;
                    entry["overflowed"] = measured.overflowed;
                    entry["underflowed"] = measured.underflowed;
                    entry["thresholds"] = rows_of(measured.stats, options);
                    sections += (sections.empty() ? "" : "\n") + title(tensor) + '\n' +
                                thresholds_text(entry["thresholds"], true);
                    if (options.sparsity <= zero_fraction)
                      sections += nothing_to_prune_note(zero_fraction, options.sparsity);
                    sections += measured.note();
                    report.json["files"].push_back(std::move(entry));
                  });
  report.text = sections + report.text;
  return report;
}

Action declare(Flags& flags) {
  auto options = std::make_shared<Options>();
  declare_tensor_files(flags, options->files);
  flags.option("--sparsity", options->sparsity, "Wanted fraction of zeros, below 1")
      .value_name("S")
      .required();
  flags
      .option("--method", options->method,
              "empirical, lognormal, gennorm, normal or mean; all of them if not given")
      .value_name("NAME")
      .offer({"empirical", "lognormal", "gennorm", "normal", "mean"});
  flags.option("--log-mean", options->log_mean, "Without a file: mean of ln|x|").value_name("M");
  flags.option("--log-std", options->log_std, "Without a file: standard deviation of ln|x|")
      .value_name("S");
  flags
      .option("--zero-fraction", options->zero_fraction,
              "Without a file: fraction of zeros already there")
      .value_name("Z");
  return [options] {
    if (!(options->sparsity >= 0 && options->sparsity < 1))
      throw UsageError("--sparsity: expected 0 <= S < 1, got " + number(options->sparsity));
    return options->files.paths.empty() ? report_law(*options) : report_files(*options);
  };
}

constexpr char kExample[] =
    R"help(Expected is what holds if the values follow the method's law. With a file every method is
shown beside what its threshold does to that tensor, in expectation over the draws (sparsity and
cosine on tensor): slimgrad threshold grad.npy --sparsity 0.85
Of a .safetensors file this is done for every tensor, or for those named by --tensor.

Example:
  $ slimgrad threshold --log-mean -12 --log-std 2.5 --sparsity 0.9
  method      threshold  expected sparsity  at +-threshold  survivors  expected cosine
  ---------  ----------  -----------------  --------------  ---------  ---------------
  lognormal  0.00052783                0.9       0.0625687  0.0374313         0.999462)help";

const bool registered = register_subcommand(
    {"threshold", "The pruning threshold for a wanted sparsity", kExample, declare});

}  // namespace
}  // namespace slimgrad::program
