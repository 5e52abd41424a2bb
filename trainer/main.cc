// slimgrad-train: trains a small network on generated images, plainly and with compressed
// gradients, and compares. Exit status: 0; 1 if training fails or does not learn; 2 on misuse. Both
// failures say why in one line on standard error.
#include <cstdio>
#include <exception>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <slimgrad/error.h>
#include <slimgrad/version.h>

#include "program/flags.h"
#include "trainer/arguments.h"
#include "trainer/comparison.h"
#include "trainer/gradient_choice.h"
#include "trainer/report.h"

namespace slimgrad::trainer {
namespace {

constexpr int kFailed = 1, kMisused = 2;

int fail(int status, const std::string& message) {
  std::fprintf(stderr, "slimgrad-train: %s\n", message.c_str());
  return status;
}

// Throws InvalidArgument; what can be wrong must be found before the training, not after it.
std::vector<Run> plan_runs(const Arguments& arguments) {
  if (arguments.num_images < arguments.training.batch_size)
    throw InvalidArgument("--images: expected at least one batch, got " +
                          std::to_string(arguments.num_images) + " images and batches of " +
                          std::to_string(arguments.training.batch_size));
  if (!arguments.out.empty() && !std::ofstream(arguments.out, std::ios::app))
    throw InvalidArgument("--out: cannot write to " + arguments.out);
  std::vector<Run> runs;
  for (const std::string& gradients : arguments.gradients)
    runs.push_back({gradients, parse_gradient_choice(gradients), {}});
  return runs;
}

void write_json(const Arguments& arguments, const std::vector<Run>& runs) {
  std::ofstream file(arguments.out, std::ios::trunc);
  file << json_of(arguments, runs);
  if (!file.flush()) throw std::runtime_error("cannot write to " + arguments.out);
}

int run(const Arguments& arguments) {
  std::vector<Run> runs = plan_runs(arguments);
  train_all(arguments, runs);
  std::printf("\n%s", table_of(runs).c_str());
  std::fflush(stdout);
  if (!arguments.out.empty()) write_json(arguments, runs);
  for (const Run& run : runs)
    if (!(run.result.test_accuracy >= arguments.min_accuracy))
      return fail(kFailed, "training with gradients " + run.gradients +
                               " did not learn: accuracy " +
                               std::to_string(run.result.test_accuracy) + ", expected at least " +
                               std::to_string(arguments.min_accuracy));
  return 0;
}

}  // namespace
}  // namespace slimgrad::trainer

int main(int argc, char** argv) {
  using namespace slimgrad::trainer;
  try {
    Arguments arguments;
    slimgrad::program::CommandLine line(
        "slimgrad-train",
        "Trains a small network on generated images, with and without compressed gradients.",
        "slimgrad-train " SLIMGRAD_VERSION);
    declare_arguments(line.flags(), arguments);
    return line.parse(argc, argv) ? run(arguments) : 0;
  } catch (const slimgrad::program::UsageError& error) {
    return fail(kMisused, error.what());
  } catch (const slimgrad::InvalidArgument& error) {
    return fail(kMisused, error.what());
  } catch (const std::exception& error) {
    return fail(kFailed, error.what());
  }
}
