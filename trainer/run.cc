#include "trainer/run.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>

#include "base/check.h"

namespace slimgrad::trainer {

double rate_share(std::string_view schedule, std::int64_t step, std::int64_t num_steps) {
  // The middle of the step.
  const double done = (static_cast<double>(step) + 0.5) / static_cast<double>(num_steps);
  if (schedule == "onecycle") {
    constexpr double kPeak = 0.2;
    return done < kPeak ? done / kPeak : (1 - done) / (1 - kPeak);
  }
  if (schedule == "cosine") return (1 + std::cos(std::numbers::pi * done)) / 2;
  if (schedule == "step") return done < 0.5 ? 1 : done < 0.75 ? 0.1 : 0.01;
  check(schedule == "constant", "schedule", "onecycle, cosine, step or constant", schedule);
  return 1;
}

// ---- RunState as CBOR, which keeps every bit of a number, also of NaN ---------------------------

using Json = nlohmann::json;

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LayerTotals, name, seen_before, passes, compressed_passes,
                                   values, compressed, nonfinite, saturated_passes, log_std, zeros,
                                   wanted, cosine, relative_error, bias, bits, worst_miss,
                                   last_threshold, last_scale, last_format)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(EpochResult, epoch, steps, rate, loss, accuracy, test_loss,
                                   test_accuracy, seconds, test_seconds, activation_values,
                                   plain_saved_bytes, saved_bytes)

std::string to_bytes(const RunState& state) {
  const RunResult& result = state.result;
  const Json json = {{"epoch", state.epoch},
                     {"step_in_epoch", state.step_in_epoch},
                     {"step", state.step},
                     {"loss_sum", state.loss_sum},
                     {"epoch_seconds", state.epoch_seconds},
                     {"correct", state.correct},
                     {"judged", state.judged},
                     {"activation_values", state.activation_values},
                     {"plain_saved_bytes", state.plain_saved_bytes},
                     {"saved_bytes", state.saved_bytes},
                     {"tensors_packed", state.tensors_packed},
                     {"epoch_gradients", state.epoch_gradients.layers()},
                     {"out_bytes", state.out_bytes},
                     {"epochs", result.epochs},
                     {"step_seconds", result.step_seconds},
                     {"median_step_seconds", result.median_step_seconds},
                     {"gradients", result.gradients.layers()},
                     {"finished", result.finished},
                     {"diverged", result.diverged},
                     {"resumed", result.resumed},
                     {"weights", result.weights}};
  std::string bytes;
  Json::to_cbor(json, bytes);
  return bytes;
}

RunState from_bytes(const std::string& bytes) {
  const Json json = Json::from_cbor(bytes);
  RunState state;
  RunResult& result = state.result;
  json.at("epoch").get_to(state.epoch);
  json.at("step_in_epoch").get_to(state.step_in_epoch);
  json.at("step").get_to(state.step);
  json.at("loss_sum").get_to(state.loss_sum);
  json.at("epoch_seconds").get_to(state.epoch_seconds);
  json.at("correct").get_to(state.correct);
  json.at("judged").get_to(state.judged);
  json.at("activation_values").get_to(state.activation_values);
  json.at("plain_saved_bytes").get_to(state.plain_saved_bytes);
  json.at("saved_bytes").get_to(state.saved_bytes);
  json.at("tensors_packed").get_to(state.tensors_packed);
  json.at("epoch_gradients").get_to(state.epoch_gradients.mutable_layers());
  json.at("out_bytes").get_to(state.out_bytes);
  json.at("epochs").get_to(result.epochs);
  json.at("step_seconds").get_to(result.step_seconds);
  json.at("median_step_seconds").get_to(result.median_step_seconds);
  json.at("gradients").get_to(result.gradients.mutable_layers());
  json.at("finished").get_to(result.finished);
  json.at("diverged").get_to(result.diverged);
  json.at("resumed").get_to(result.resumed);
  json.at("weights").get_to(result.weights);
  return state;
}

}  // namespace slimgrad::trainer
