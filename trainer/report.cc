#include "trainer/report.h"

#include <cstdio>

#include "program/table.h"

namespace slimgrad::trainer {
namespace {

using program::Align;
using program::Table;

std::string fixed(double value, int digits) {
  char text[32];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

double wanted_sparsity(const Run& run) { return run.choice.gates ? run.choice.gates->sparsity : 0; }

nlohmann::ordered_json json_of_layer(const LayerTotals& layer) {
  const auto compressed = static_cast<double>(layer.compressed);
  nlohmann::ordered_json json = {
      {"layer", layer.name},
      {"values", layer.values},
      {"compressed_values", layer.compressed},
      {"bits_per_value", layer.bits / static_cast<double>(layer.values)},
  };
  if (layer.compressed == 0) return json;
  json["sparsity"] = layer.zeros / compressed;
  json["worst_sparsity_miss"] = layer.worst_miss;
  json["cosine"] = layer.cosine / compressed;
  if (layer.last.quantizer) json["last_format"] = layer.last.quantizer->format.name();
  return json;
}

}  // namespace

std::string table_of(const std::vector<Run>& runs) {
  Table table({{"gradients", Align::kLeft},
               {"test accuracy"},
               {"sparsity wanted"},
               {"achieved"},
               {"worst miss"},
               {"bits a value"},
               {"ms a step"},
               {"median"}});
  for (const Run& run : runs) {
    const GradientTotals& gradients = run.result.gradients;
    const bool pruned = wanted_sparsity(run) > 0;
    table.add({run.gradients, program::percent(run.result.test_accuracy),
               pruned ? fixed(wanted_sparsity(run), 4) : "-",
               run.choice.gates ? fixed(gradients.sparsity(), 4) : "-",
               pruned ? fixed(gradients.worst_miss(), 4) : "-",
               fixed(gradients.bits_per_value(), 2), fixed(1e3 * run.result.mean_step_seconds, 1),
               fixed(1e3 * run.result.median_step_seconds, 1)});
  }
  return table.text() +
         "\n"
         "Sparsity: the share of zeros in the gradients that were compressed, over the whole run;\n"
         "worst miss: the largest |achieved - wanted| of a layer in a step. Bits: of all "
         "gradients\n"
         "behind a convolution or linear layer, counting 32 for those too small to compress; with\n"
         "pruning, what an ideal entropy coder needs: the entropy of zero / at the threshold /\n"
         "survivor, a sign, and the survivors in full.\n";
}

nlohmann::ordered_json json_of(const std::vector<Run>& runs) {
  auto json = nlohmann::ordered_json::array();
  for (const Run& run : runs) {
    const GradientTotals& gradients = run.result.gradients;
    auto layers = nlohmann::ordered_json::array();
    for (const LayerTotals& layer : gradients.layers()) layers.push_back(json_of_layer(layer));
    json.push_back({{"gradients", run.gradients},
                    {"test_accuracy", run.result.test_accuracy},
                    {"loss_by_epoch", run.result.loss_by_epoch},
                    {"test_accuracy_by_epoch", run.result.accuracy_by_epoch},
                    {"seconds_by_epoch", run.result.seconds_by_epoch},
                    {"sparsity_wanted", wanted_sparsity(run)},
                    {"sparsity", gradients.sparsity()},
                    {"worst_sparsity_miss", gradients.worst_miss()},
                    {"bits_per_value", gradients.bits_per_value()},
                    {"mean_step_seconds", run.result.mean_step_seconds},
                    {"median_step_seconds", run.result.median_step_seconds},
                    {"layers", layers}});
  }
  return json;
}

}  // namespace slimgrad::trainer
