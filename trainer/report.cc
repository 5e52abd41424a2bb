#include "trainer/report.h"

#include <slimgrad/version.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "program/table.h"

namespace slimgrad::trainer {
namespace {

using Json = nlohmann::ordered_json;
using program::Align;
using program::Table;

std::string fixed(double value, int digits) {
  char text[32];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

double wanted_sparsity(const Run& run) { return run.choice.gates ? run.choice.gates->sparsity : 0; }

Json json_of_layer(const LayerTotals& layer) {
  const auto compressed = static_cast<double>(layer.compressed);
  Json json = {
      {"layer", layer.name},
      {"values", layer.values},
      {"compressed_values", layer.compressed},
      {"bits_per_value", layer.bits / static_cast<double>(layer.values)},
  };
  if (layer.compressed == 0) return json;
  json["sparsity"] = layer.zeros / compressed;
  json["worst_sparsity_miss"] = layer.worst_miss;
  json["cosine"] = layer.cosine / compressed;
  if (!layer.last_format.empty()) json["last_format"] = layer.last_format;
  return json;
}

Json json_of_runs(const std::vector<Run>& runs) {
  auto json = Json::array();
  for (const Run& run : runs) {
    const GradientTotals& gradients = run.result.gradients;
    auto layers = Json::array();
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

std::string json_of(const Arguments& arguments, const std::vector<Run>& runs) {
  const Json json = {{"version", SLIMGRAD_VERSION},
                     {"model", arguments.model},
                     {"training_images", arguments.num_images},
                     {"test_images", arguments.num_test_images},
                     {"epochs", arguments.training.epochs},
                     {"batch_size", arguments.training.batch_size},
                     {"learning_rate", arguments.training.learning_rate},
                     {"seed", arguments.training.seed},
                     {"threads", arguments.threads},
                     {"runs", json_of_runs(runs)}};
  return json.dump(2) + '\n';
}

}  // namespace slimgrad::trainer
