// slimgrad-train: trains a small network on generated images, plainly and with compressed
// gradients, and compares. Exit status: 0; 1 if training fails or does not learn; 2 on misuse. Both
// failures say why in one line on standard error.
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <slimgrad/error.h>
#include <slimgrad/version.h>

#include "trainer/gradient_choice.h"
#include "trainer/model.h"
#include "trainer/progress_line.h"
#include "trainer/report.h"
#include "trainer/training.h"

namespace slimgrad::trainer {
namespace {

constexpr int kFailed = 1, kMisused = 2;

struct Arguments {
  std::vector<std::string> gradients{"none", "fp6", "prune:0.85"};
  std::string model = "cnn";
  std::int64_t num_images = 8000, num_test_images = 2000;
  TrainingOptions training;
  int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  double min_accuracy = 0.85;
  std::string out;
};

int fail(int status, const std::string& message) {
  std::fprintf(stderr, "slimgrad-train: %s\n", message.c_str());
  return status;
}

void declare(CLI::App& app, Arguments& arguments) {
  app.set_version_flag("--version", "slimgrad-train " SLIMGRAD_VERSION);
  app.footer(
      "Example: is FP4 enough, alone and with 90 % of the gradients pruned?\n"
      "  slimgrad-train --gradients none fp4 prune:0.9+fp4 --epochs 5 --out runs.json");
  app.option_defaults()->always_capture_default();
  app.add_option("--gradients", arguments.gradients,
                 "One run for each: none, fp2 to fp8, prune:SPARSITY, prune:SPARSITY+fp6, or "
                 "sparse:WEIGHT:INPUT, a sparse backward pass with two sparsities")
      ->expected(1, -1);
  app.add_option("--epochs", arguments.training.epochs, "Passes over the training images")
      ->check(CLI::Range(1, 10000));
  app.add_option("--images", arguments.num_images, "Training images to generate")
      ->check(CLI::Range(1, 10000000));
  app.add_option("--test-images", arguments.num_test_images, "Test images to generate")
      ->check(CLI::Range(1, 10000000));
  app.add_option("--batch", arguments.training.batch_size, "Images a step")
      ->check(CLI::Range(2, 100000));
  app.add_option("--rate", arguments.training.learning_rate, "Learning rate at its peak")
      ->check(CLI::PositiveNumber);
  app.add_option("--model", arguments.model, "cnn, or linear: softmax regression, which must fail")
      ->check(CLI::IsMember({"cnn", "linear"}));
  app.add_option("--seed", arguments.training.seed, "Of images, weights, order and random draws");
  app.add_option("--threads", arguments.threads, "Threads to use")->check(CLI::Range(1, 1024));
  app.add_option("--min-accuracy", arguments.min_accuracy,
                 "Exit with status 1 if a run ends below this test accuracy")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--out", arguments.out, "Also write the results to this file, as JSON");
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
  const nlohmann::ordered_json json = {{"version", SLIMGRAD_VERSION},
                                       {"model", arguments.model},
                                       {"training_images", arguments.num_images},
                                       {"test_images", arguments.num_test_images},
                                       {"epochs", arguments.training.epochs},
                                       {"batch_size", arguments.training.batch_size},
                                       {"learning_rate", arguments.training.learning_rate},
                                       {"seed", arguments.training.seed},
                                       {"threads", arguments.threads},
                                       {"runs", json_of(runs)}};
  std::ofstream file(arguments.out, std::ios::trunc);
  file << json.dump(2) << '\n';
  if (!file.flush()) throw std::runtime_error("cannot write to " + arguments.out);
}

void train_all(const Arguments& arguments, std::vector<Run>& runs) {
  const std::uint64_t seed = arguments.training.seed;
  const auto draw = [&](Split split, std::int64_t count) {
    return to_samples(draw_glyphs(seed, split, count, arguments.threads));
  };
  std::printf("Drawing %lld training and %lld test images of %d classes\n",
              static_cast<long long>(arguments.num_images),
              static_cast<long long>(arguments.num_test_images), kNumClasses);
  std::fflush(stdout);
  const Samples training = draw(Split::kTraining, arguments.num_images);
  const Samples test = draw(Split::kTest, arguments.num_test_images);
  const Architecture architecture =
      arguments.model == "linear" ? Architecture::kLinear : Architecture::kConvolutional;
  ProgressLine line(static_cast<int>(runs.size()));
  for (Run& run : runs) {
    torch::manual_seed(seed);  // the same weights for every run
    torch::nn::Sequential network = make_network(architecture, run.choice, seed);
    line.begin_run(run.gradients);
    run.result = train(network, training, test, arguments.training,
                       [&](const Progress& progress) { line.show(progress); });
  }
}

int run(const Arguments& arguments) {
  std::vector<Run> runs = plan_runs(arguments);
  at::set_num_threads(arguments.threads);
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
  Arguments arguments;
  CLI::App app("Trains a small network on generated images, with and without compressed gradients.",
               "slimgrad-train");
  try {
    declare(app, arguments);
    app.parse(argc, argv);
    return run(arguments);
  } catch (const CLI::Success& help_or_version) {
    return app.exit(help_or_version);
  } catch (const CLI::ParseError& error) {
    return fail(kMisused, error.what());
  } catch (const slimgrad::InvalidArgument& error) {
    return fail(kMisused, error.what());
  } catch (const std::exception& error) {
    return fail(kFailed, error.what());
  }
}
