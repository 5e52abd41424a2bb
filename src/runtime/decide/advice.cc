// GateGroup::warnings(): what the reports mean, where a gradient is harmed, with what helps.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include <slimgrad/gate_group.h>

#include "torch/decide/plan_tensor.h"

namespace slimgrad {
namespace {

// Below this cosine more than half of what is left of a gradient is noise: its square is the share
// of the squared length that points where the gradient did.
constexpr double kLeastCosine = 0.7;
// The relative error of rounding alone: beyond it values are off by half of themselves on average.
constexpr double kLargestRelativeError = 0.5;
// The bias of a gradient's sum over the sum of magnitudes. Stochastic rounding moves it by noise
// alone, which is larger than this in layers with few large values; so only others are told.
constexpr double kLargestBias = 0.05;
// How far the zeros of all layers may fall short of an allocation: more than sampling explains.
constexpr double kLargestShortfall = 0.02;

std::string text(const char* format, double value) {
  std::array<char, 40> text;
  std::snprintf(text.data(), text.size(), format, value);
  return text.data();
}

// What the gates are told, which is the same in all that count.
struct Told {
  const GateOptions& gate;
  const GroupOptions& group;
  double target;
  bool is_sparse, prunes_inputs;

  bool prunes() const { return gate.settings.prune != PruneKind::kNone; }
  bool is_uniform() const { return gate.allocation == AllocationObjective::kUniform; }
};

using Rows = std::vector<NamedReport>;
using Sentences = std::vector<std::string>;

// Layers through which no gradient came, while it came through others more than once. The input of
// a first layer needs no gradient, so that its product is no sign of anything.
void add_not_reached(const Rows& rows, Sentences& sentences) {
  constexpr std::size_t kMostNames = 5;
  Sentences names;
  std::int64_t most_calls = 0;
  for (const NamedReport& row : rows) {
    most_calls = std::max(most_calls, row.gate.calls);
    if (row.gate.calls == 0 && !row.name.ends_with(".input")) names.push_back(row.name);
  }
  if (names.empty() || most_calls < 2) return;
  std::string listed;
  for (std::size_t i = 0; i < std::min(names.size(), kMostNames); ++i)
    listed += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > kMostNames)
    listed += " and " + std::to_string(names.size() - kMostNames) + " more";
  sentences.push_back("no gradient has come through " + listed +
                      ": frozen, not used, or not called as a module (its weight is used by other "
                      "code)");
}

// Where most layers are harmed, no exclusion helps: the sparsity is too high for the model.
void add_too_sparse(const Rows& rows, const Told& told, Sentences& sentences) {
  const auto harmed = static_cast<std::size_t>(std::ranges::count_if(
      rows, [](const NamedReport& row) { return row.gate.cosine < kLeastCosine; }));
  if (harmed < 3 || 2 * harmed <= rows.size()) return;
  std::string remedy = "prune less, language models for example to 0.5";
  if (!told.is_sparse)
    remedy +=
        ", or for the weight's gradient alone, whose noise stays in its layer: Prune(weight=" +
        text("%g", told.target) + ", input=0)";
  else if (told.prunes_inputs)
    remedy += ", above all with input=0: noise in the input's gradient runs through all layers";
  sentences.push_back(std::to_string(harmed) + " of " + std::to_string(rows.size()) +
                      " pruned gradients keep a cosine below " + text("%g", kLeastCosine) +
                      ", the sparsity is too high for this model; " + remedy +
                      " (docs/results.md)");
}

// Whether an allocation over all layers found room for its sparsity.
void add_out_of_reach(const Rows& rows, const Told& told, Sentences& sentences) {
  if (told.is_uniform() || told.is_sparse) return;
  double elements = 0, zeros = 0;
  for (const NamedReport& row : rows) {
    elements += static_cast<double>(row.gate.elements);
    zeros += row.gate.sparsity * static_cast<double>(row.gate.elements);
  }
  if (zeros > (told.target - kLargestShortfall) * elements) return;
  sentences.push_back("all layers together have " + text("%.2f", zeros / elements) +
                      " zeros instead of " + text("%.2f", told.target) + ": targets and a cap of " +
                      text("%g", told.group.cap) + " leave room for no more");
}

void add_of_one(const NamedReport& row, const Told& told, Sentences& sentences) {
  const GateReport& report = row.gate;
  const GradientSettings& settings = told.gate.settings;
  if (told.prunes() && report.cosine < kLeastCosine)
    sentences.push_back(
        row.name + ": pruning to " + text("%.2f", report.sparsity) + " leaves a cosine of " +
        text("%.2f", report.cosine) + " with the gradient; " +
        (told.is_uniform()
             ? "prune it less, exclude it, or spread the sparsity with allocation='min_cosine'"
             : "prune less overall, exclude it, or give it a cosine of its own with targets="));
  if (settings.bits == 0) return;
  if (!told.prunes() && report.relative_error > kLargestRelativeError)
    sentences.push_back(row.name + ": " +
                        (report.quantizer ? report.quantizer->format.name() : "None") +
                        " changes values by " + text("%.0f%%", 100 * report.relative_error) +
                        " on average; give it more bits, or method='empirical' if another is set");
  const bool is_biased =
      settings.rounding == Rounding::kNearest || settings.underflow == Underflow::kZero;
  if (is_biased && std::abs(report.bias) > kLargestBias)
    sentences.push_back(row.name + ": rounding shifts the sum of the gradient by " +
                        text("%+.0f%%", 100 * report.bias) +
                        " of its magnitude; rounding='stochastic' and underflow='stochastic' keep "
                        "it");
}

}  // namespace

std::vector<std::string> GateGroup::warnings() const {
  Rows rows = reports(), compressed;
  std::erase_if(rows, [](const NamedReport& row) { return !row.counts; });
  std::ranges::copy_if(rows, std::back_inserter(compressed), [](const NamedReport& row) {
    return row.gate.calls > 0 && row.gate.compressed;
  });
  Sentences sentences;
  add_not_reached(rows, sentences);
  if (compressed.empty()) return sentences;
  const auto first = std::ranges::find_if(gates_, [&](const Gate& gate) { return counts(gate); });
  const GateState state = torch_ops::read_plan(first->plan, "warnings");
  const bool prunes_inputs =
      std::ranges::any_of(gates_, [&](const Gate& gate) { return gate.is_input && counts(gate); });
  const Told told{state.options, options_, state.target, !layers_.empty(), prunes_inputs};
  if (told.prunes()) {
    add_too_sparse(compressed, told, sentences);
    add_out_of_reach(compressed, told, sentences);
  }
  for (const NamedReport& row : compressed) add_of_one(row, told, sentences);
  return sentences;
}

}  // namespace slimgrad
