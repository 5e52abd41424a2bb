// slimgrad measure: the statistics of tensors in files.
#include <slimgrad/tensor_stats.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numbers>

#include "program/output.h"
#include "program/subcommand.h"
#include "program/table.h"
#include "program/tensor_files.h"

namespace slimgrad::program {
namespace {

// The bins that hold anything, eight an octave, named by their lower edge.
Json histogram_json(const LogHistogram& histogram) {
  Json edges = Json::array();
  Json counts = Json::array();
  for (int bin = 0; bin < LogHistogram::kNumBins; ++bin) {
    if (histogram.counts[bin] == 0) continue;
    edges.push_back(LogHistogram::lower_edge(bin));
    counts.push_back(histogram.counts[bin]);
  }
  return {{"total", histogram.total()}, {"lower_edges", edges}, {"counts", counts}};
}

// One octave is one exponent; all subnormals go into the lowest, -127.
std::map<int, std::uint64_t> octaves_of(const LogHistogram& histogram) {
  std::map<int, std::uint64_t> octaves;
  for (int bin = 0; bin < LogHistogram::kNumBins; ++bin)
    if (histogram.counts[bin] > 0) octaves[bin / 8 - 127] += histogram.counts[bin];
  return octaves;
}

// At most twenty rows: neighbouring octaves share one if there are more.
std::string histogram_text(const TensorStats& stats) {
  constexpr int kMaxRows = 20;
  constexpr double kWidth = 50;
  const std::map<int, std::uint64_t> octaves = octaves_of(stats.histogram);
  const int low = octaves.begin()->first;
  const int high = octaves.rbegin()->first;
  const int octaves_a_row = (high - low) / kMaxRows + 1;
  std::vector<std::uint64_t> rows(static_cast<std::size_t>((high - low) / octaves_a_row) + 1);
  for (const auto& [octave, count] : octaves)
    rows[static_cast<std::size_t>((octave - low) / octaves_a_row)] += count;

  const double largest = static_cast<double>(std::ranges::max(rows));
  const double total = static_cast<double>(stats.histogram.total());
  Table table({{"log2|x| from"}, {"to"}, {"share"}, {"", Align::kLeft}});
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const int from = low + static_cast<int>(i) * octaves_a_row;
    const auto count = static_cast<double>(rows[i]);
    const auto width = static_cast<std::size_t>(kWidth * count / largest + 0.5);
    table.add({from == -127 ? "subnormal" : std::to_string(from),
               std::to_string(from + octaves_a_row), percent(count / total),
               std::string(width, '#')});
  }
  std::string text = table.text();
  if (stats.histogram.total() != stats.num_nonzero())
    text += "(a sample of " + std::to_string(stats.histogram.total()) + " non-zero values)\n";
  return text;
}

Json stats_json(const TensorStats& stats) {
  return {{"count", stats.count},
          {"zeros", stats.zeros},
          {"nonfinite", stats.nonfinite},
          {"zero_fraction", stats.zero_fraction},
          {"log_mean", stats.log_mean},
          {"log_std", stats.log_std},
          {"log2_mean", stats.log_mean / std::numbers::ln2},
          {"log2_std", stats.log_std / std::numbers::ln2},
          {"max_abs", stats.max_abs},
          {"mean_abs", stats.mean_abs},
          {"mean_square", stats.mean_square}};
}

// The keys of the JSON form are the names of the rows.
std::string stats_text(const Json& stats) {
  Table table({{"", Align::kLeft}, {""}});
  for (const auto& [key, value] : stats.items())
    table.add({key, value.is_number_float() ? number(value) : json_text(value)});
  return table.text();
}

std::string section_text(const FloatTensor& tensor, const MeasuredTensor& measured,
                         const Json& stats) {
  return title(tensor) + '\n' + stats_text(stats) + measured.note() + '\n' +
         histogram_text(measured.stats);
}

// One row a tensor: for all those of a file.
class Overview {
 public:
  void add(const FloatTensor& tensor, const TensorStats& stats) {
    table_.add({tensor.name, std::string(dtype_name(tensor.type)), shape_text(tensor.shape),
                percent(stats.zero_fraction), std::to_string(stats.nonfinite),
                number(stats.log_mean / std::numbers::ln2),
                number(stats.log_std / std::numbers::ln2), number(stats.max_abs),
                number(stats.mean_abs)});
  }
  std::string text() const { return table_.text(); }

 private:
  Table table_{{{"tensor", Align::kLeft},
                {"dtype", Align::kLeft},
                {"shape", Align::kLeft},
                {"zeros"},
                {"nonfinite"},
                {"log2_mean"},
                {"log2_std"},
                {"max_abs"},
                {"mean_abs"}}};
};

Report report_files(const TensorFileOptions& options) {
  Report report;
  report.json["files"] = Json::array();
  std::map<std::string, Overview> overviews;  // by file
  std::string sections;
  for_each_tensor(
      options, "measuring", 1, report, [&](const FloatTensor& tensor, Progress& progress) {
        const MeasuredTensor measured = measure_tensor(tensor, progress);
        const Json stats = stats_json(measured.stats);
        Json entry = describe(tensor);
        entry.update(stats);
        entry["overflowed"] = measured.overflowed;
        entry["underflowed"] = measured.underflowed;
        entry["histogram"] = histogram_json(measured.stats.histogram);
        report.json["files"].push_back(std::move(entry));
        if (!tensor.name.empty() && options.names.empty())
          overviews[tensor.path].add(tensor, measured.stats);
        else
          sections += (sections.empty() ? "" : "\n") + section_text(tensor, measured, stats);
      });
  for (const auto& [path, overview] : overviews)
    sections += (sections.empty() ? "" : "\n") + printable(path) + ":\n\n" + overview.text();
  report.text = sections + report.text;
  return report;
}

Action declare(Flags& flags) {
  auto options = std::make_shared<TensorFileOptions>();
  declare_tensor_files(flags, *options).required();
  return [options] { return report_files(*options); };
}

constexpr char kExample[] =
    R"help(float64 is measured as float32: magnitudes outside float32's range become zero or
infinite, and the report says how many. Of a .safetensors file there is one row for
every tensor; --tensor NAME shows one as below. --json has everything about all.

Example:
  $ python -c "import numpy; numpy.save('g.npy', numpy.float32([0, 1, -2, 4, 8]))"
  $ slimgrad measure g.npy
  g.npy: float32, 5

  count                 5
  zeros                 1
  nonfinite             0
  zero_fraction       0.2
  log_mean        1.03972
  log_std        0.774962
  log2_mean           1.5
  log2_std        1.11803
  max_abs               8
  mean_abs              3
  mean_square          17

  log2|x| from  to   share
  ------------  --  ------  --------------------------------------------------
             0   1  25.0 %  ##################################################
             1   2  25.0 %  ##################################################
             2   3  25.0 %  ##################################################
             3   4  25.0 %  ##################################################)help";

const bool registered =
    register_subcommand({"measure", "Statistics of tensors", kExample, declare});

}  // namespace
}  // namespace slimgrad::program
