#include "trainer/arguments.h"

#include <algorithm>
#include <thread>

namespace slimgrad::trainer {
namespace {

// As they are typed.
std::string words(const std::vector<std::string>& values) {
  std::string text;
  for (const std::string& value : values) text += (text.empty() ? "" : " ") + value;
  return text;
}

}  // namespace

Arguments::Arguments()
    : threads(static_cast<int>(std::max(1u, std::thread::hardware_concurrency()))) {}

void declare_arguments(program::Flags flags, Arguments& arguments) {
  flags.footer(
      "Example: is FP4 enough, alone and with 90 % of the gradients pruned?\n"
      "  slimgrad-train --gradients none fp4 prune:0.9+fp4 --epochs 5 --out runs.json");
  flags.show_defaults();
  flags
      .option("--gradients", arguments.gradients,
              "One run for each: none, fp2 to fp8, prune:SPARSITY, prune:SPARSITY+fp6, or "
              "sparse:WEIGHT:INPUT, a sparse backward pass with two sparsities")
      .show_default(words(arguments.gradients));
  flags.option("--epochs", arguments.training.epochs, "Passes over the training images")
      .range(1, 10000);
  flags.option("--images", arguments.num_images, "Training images to generate").range(1, 10000000);
  flags.option("--test-images", arguments.num_test_images, "Test images to generate")
      .range(1, 10000000);
  flags.option("--batch", arguments.training.batch_size, "Images a step").range(2, 100000);
  flags.option("--rate", arguments.training.learning_rate, "Learning rate at its peak").positive();
  flags.option("--model", arguments.model, "cnn, or linear: softmax regression, which must fail")
      .one_of({"cnn", "linear"});
  flags.option("--seed", arguments.training.seed, "Of images, weights, order and random draws");
  flags.option("--threads", arguments.threads, "Threads to use").range(1, 1024);
  flags
      .option("--min-accuracy", arguments.min_accuracy,
              "Exit with status 1 if a run ends below this test accuracy")
      .range(0.0, 1.0);
  flags.option("--out", arguments.out, "Also write the results to this file, as JSON");
}

}  // namespace slimgrad::trainer
