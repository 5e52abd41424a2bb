#include "trainer/records.h"

#include <slimgrad/version.h>

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <system_error>

#include <slimgrad/error.h>

#include "arrays/decide/gate_fields.h"
#include "arrays/measure/run_record.h"

namespace slimgrad::trainer {
namespace {

using Json = nlohmann::ordered_json;

Json line(const char* kind, const Run& run) { return {{"kind", kind}, {"run", run.number}}; }
std::string text_of(const Json& line) { return record_line(line.dump()); }

std::string hexadecimal(std::uint64_t number) {
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(number));
  return digits;
}

double share(double part, double whole) { return whole > 0 ? part / whole : 0; }

Json json_of_layer(const Run& run, const EpochResult& epoch, const LayerTotals& layer) {
  const auto compressed = static_cast<double>(layer.compressed);
  Json json = line("layers", run);
  json["epoch"] = epoch.epoch;
  json["step"] = epoch.steps;
  json["layer"] = layer.name;
  json["passes"] = layer.passes;
  json["values"] = layer.values;
  json["compressed_values"] = layer.compressed;
  json["log_std"] = share(layer.log_std, static_cast<double>(layer.passes));
  json["nonfinite"] = layer.nonfinite;
  json["bits_per_value"] = share(layer.bits, static_cast<double>(layer.values));
  if (layer.compressed == 0) return json;
  json["sparsity"] = layer.zeros / compressed;
  json["sparsity_wanted"] = layer.wanted / compressed;
  json["worst_sparsity_miss"] = layer.worst_miss;
  json["cosine"] = layer.cosine / compressed;
  json["relative_error"] = layer.relative_error / compressed;
  json["bias"] = layer.bias / compressed;
  json["threshold"] = layer.last_threshold;
  json["saturated_passes"] = layer.saturated_passes;
  if (layer.last_format.empty()) return json;
  json["format"] = layer.last_format;
  json["scale"] = layer.last_scale;
  return json;
}

Json json_of_fits(const std::vector<FamilyFit>& fits) {
  auto json = Json::object();
  for (const FamilyFit& fit : fits) {
    Json family = {{"ks", fit.ks_distance}};
    const auto names = parameter_names(fit.law.family());
    for (std::size_t i = 0; i < names.size(); ++i)
      family[std::string(names[i])] = fit.law.params()[i];
    json[std::string(family_name(fit.law.family()))] = family;
  }
  return json;
}

}  // namespace

RunFile::RunFile(const std::string& path, std::uint64_t keep) : path_(path), bytes_(keep) {
  if (path.empty()) return;
  std::error_code error;
  if (keep > 0) {
    const std::uint64_t there = std::filesystem::file_size(path, error);
    if (error || there < keep)
      throw InvalidArgument(
          "--out: expected the file that the checkpointed run wrote, got " +
          (error ? "none" : std::to_string(there) + " bytes of " + std::to_string(keep)) + " at " +
          path);
    std::filesystem::resize_file(path, keep, error);
  }
  file_.open(path, keep > 0 ? std::ios::app : std::ios::trunc);
  if (!file_ || error) throw InvalidArgument("--out: cannot write to " + path);
}

void RunFile::write(const std::string& line) {
  if (path_.empty()) return;
  file_ << line << '\n';
  if (!file_.flush()) throw std::runtime_error("cannot write to " + path_);
  bytes_ += line.size() + 1;
}

std::string config_line(const Arguments& arguments, const Run& run, const RunFacts& facts) {
  const TrainingOptions& training = arguments.training;
  const GradientOptions& options = arguments.gradient_options;
  Json json = line("config", run);
  json.update({{"schema", kRecordSchema},
               {"version", SLIMGRAD_VERSION},
               {"commit", facts.commit},
               {"machine", facts.machine}});
  json.update({{"model", arguments.model},
               {"parameters", facts.parameters},
               {"norm", arguments.batch_norm ? "batch" : "none"},
               {"nonlinearity", arguments.activation_choice.function},
               {"activations", arguments.activations},
               {"saved", arguments.saved},
               {"fake_int4", arguments.fake_int4},
               {"data", facts.data},
               {"data_hash", hexadecimal(facts.data_hash)},
               {"sample", facts.is_text ? "window" : "image"},
               {"training_samples", facts.training_samples},
               {"test_samples", facts.test_samples},
               {"augment", training.augment},
               {"gradients", run.gradients},
               {"targets", options.targets},
               {"cap", options.cap},
               {"sparse_way", options.sparse_way},
               {"epochs", training.epochs},
               {"batch", training.batch_size},
               {"optimizer", training.optimizer},
               {"rate", training.learning_rate},
               {"momentum", training.optimizer == "sgd" ? Json(training.momentum) : Json()},
               {"weight_decay", training.weight_decay},
               {"schedule", training.schedule},
               {"seed", training.seed},
               {"threads", arguments.threads},
               {"probe_at", training.probe_steps},
               {"probe", arguments.probes}});
  for (const GateSetting& setting : gate_settings()) {
    const std::string& text = options.gate.at(setting.option.name);
    json[setting.option.name] = setting.is_number() ? Json(std::stoll(text)) : Json(text);
  }
  return text_of(json);
}

std::string difference(const std::string& saved, const std::string& wanted) {
  const Json before = Json::parse(saved), now = Json::parse(wanted);
  for (const auto& [key, value] : now.items()) {
    if (key == "version" || key == "commit" || key == "machine") continue;
    const Json old = before.contains(key) ? before.at(key) : Json();
    if (old != value) return key + " " + old.dump() + ", got " + value.dump();
  }
  return {};
}

std::string epoch_line(const Run& run, const Arguments& arguments, const EpochResult& epoch) {
  const GradientTotals& gradients = run.state.epoch_gradients;
  const auto values = static_cast<double>(gradients.num_values());
  const std::int64_t samples =
      arguments.training.batch_size *
      (epoch.steps - (run.result().epochs.size() > 1 ? run.result().epochs.rbegin()[1].steps : 0));
  Json json = line("epoch", run);
  json.update({{"epoch", epoch.epoch},
               {"step", epoch.steps},
               {"rate", epoch.rate},
               {"loss", epoch.loss},
               {"accuracy", epoch.accuracy},
               {"test_loss", epoch.test_loss},
               {"test_accuracy", epoch.test_accuracy},
               {"seconds", epoch.seconds},
               {"test_seconds", epoch.test_seconds},
               {"samples_per_second", share(static_cast<double>(samples), epoch.seconds)},
               {"gradient_bytes", 4 * gradients.num_values()},
               {"compressed_gradient_bytes", values * gradients.bits_per_value() / 8},
               {"activation_values", epoch.activation_values}});
  if (arguments.training.saved_bits)
    json.update(
        {{"plain_saved_bytes", epoch.plain_saved_bytes}, {"saved_bytes", epoch.saved_bytes}});
  return text_of(json);
}

std::vector<std::string> layer_lines(const Run& run, const EpochResult& epoch) {
  std::vector<std::string> lines;
  for (const LayerTotals& layer : run.state.epoch_gradients.layers())
    if (layer.passes > 0) lines.push_back(text_of(json_of_layer(run, epoch, layer)));
  return lines;
}

std::vector<std::string> look_lines(const Run& run, const Arguments& arguments,
                                    const GradientLook& look) {
  std::vector<std::string> lines;
  const auto begin = [&](const char* kind) {
    Json json = line(kind, run);
    json.update({{"epoch", run.state.epoch + 1},
                 {"step", run.state.step},
                 {"layer", look.layer},
                 {"tensor", look.tensor}});
    return json;
  };
  if (arguments.training.histograms) {
    Json json = begin("histogram");
    json.update(Json::parse(histogram_fields(look.stats)));
    lines.push_back(text_of(json));
  }
  if (arguments.training.fits) {
    Json json = begin("fit");
    json["families"] = json_of_fits(look.fits);
    lines.push_back(text_of(json));
  }
  for (const CodeSizes& sizes : look.sizes) {
    Json json = begin("bits");
    json["quantizer_bits"] = sizes.quantizer_bits;
    json["entropy"] = sizes.entropy;
    for (const CodeSize& code : sizes.codes)
      json[code.coder][std::string(table_model_name(code.model))] = code.bits;
    lines.push_back(text_of(json));
  }
  return lines;
}

std::string end_line(const Run& run, std::uint64_t peak_memory) {
  const RunResult& result = run.result();
  const GradientTotals& gradients = result.gradients;
  const bool tested = !result.epochs.empty();
  Json json = line("end", run);
  json.update(
      {{"steps", run.state.step},
       {"test_accuracy", tested ? Json(result.epochs.back().test_accuracy) : Json()},
       {"test_loss", tested ? Json(result.epochs.back().test_loss) : Json()},
       {"diverged", result.diverged},
       {"sparsity", gradients.sparsity()},
       {"worst_sparsity_miss", gradients.worst_miss()},
       {"bits_per_value", gradients.bits_per_value()},
       {"step_seconds", result.step_seconds},
       {"mean_step_seconds", share(result.step_seconds, static_cast<double>(run.state.step))},
       {"median_step_seconds", result.median_step_seconds},
       {"resumed", result.resumed},
       {"peak_memory_bytes", peak_memory},
       {"weights", result.weights}});
  return text_of(json);
}

}  // namespace slimgrad::trainer
