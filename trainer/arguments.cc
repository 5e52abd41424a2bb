#include "trainer/arguments.h"

#include <algorithm>
#include <thread>

#include <slimgrad/error.h>

#include "arrays/decide/gate_fields.h"

namespace slimgrad::trainer {
namespace {

// As they are typed.
std::string words(const std::vector<std::string>& values) {
  std::string text;
  for (const std::string& value : values) text += (text.empty() ? "" : " ") + value;
  return text;
}

// "min_elements" as "--min-elements".
std::string flag_of(std::string name) {
  std::ranges::replace(name, '_', '-');
  return "--" + name;
}

// With the choices, as "a, b or c".
std::string help_of(const GateSetting& setting, const std::vector<std::string>& choices) {
  std::string text = setting.option.help;
  for (std::size_t i = 0; i < choices.size(); ++i)
    text += (i == 0 ? ": " : i + 1 < choices.size() ? ", " : " or ") + choices[i];
  return *setting.option.other == '\0' ? text : text + "; or " + setting.option.other;
}

void declare_what_is_trained(program::Flags flags, Arguments& arguments) {
  flags
      .option("--model", arguments.model,
              "cnn, resnet20, resnet18, vgg11, densenet, mlp, gpt, or linear: softmax regression, "
              "which must fail on glyphs")
      .one_of({"cnn", "resnet20", "resnet18", "vgg11", "densenet", "mlp", "gpt", "linear"});
  flags
      .option("--data", arguments.data,
              "glyphs or grammar, which are generated; cifar10:DIR, its binary version; idx:DIR, "
              "MNIST's layout; text:FILE, any text")
      .show_default("glyphs, for gpt grammar")
      .offer({"glyphs", "grammar"});
  flags
      .option("--train-size,--images", arguments.limits.training,
              "Training samples to generate, or to take from the start of the data")
      .range(1, 10000000)
      .show_default("8000 glyphs, 4000 windows of grammar, all of a file");
  flags.option("--test-size,--test-images", arguments.limits.test, "Test samples, likewise")
      .range(1, 10000000)
      .show_default("2000 glyphs, 400 windows of grammar, all of a file");
  flags
      .option("--norm", arguments.norm,
              "Normalisation of networks with convolutions: batch or none")
      .one_of({"batch", "none"})
      .show_default("batch");
  flags
      .option("--nonlinearity", arguments.nonlinearity,
              "Activation function of the network: relu, gelu, silu or tanh")
      .one_of({"relu", "gelu", "silu", "tanh"})
      .show_default("relu, for gpt gelu");
  flags
      .option(
          "--activations", arguments.activations,
          "What activation functions save for backward: 1 to 4 bits per value; exact: the output "
          "and one bit; torch: the tensors that torch saves")
      .one_of({"torch", "exact", "1", "2", "3", "4"});
  flags
      .option(
          "--saved", arguments.saved,
          "How autograd's other saved tensors are stored until backward: 8, 4 or 2 bits per value; "
          "exact: losslessly, without zeros; torch: unchanged")
      .one_of({"torch", "exact", "8", "4", "2"});
  flags
      .option("--augment", arguments.augment,
              "Move images by up to four pixels and mirror half of them: yes or no")
      .one_of({"yes", "no"})
      .show_default("yes for cifar10");
  flags.flag("--fake-int4", arguments.fake_int4,
             "Round weights and inputs of all layers but the first and the last to 4-bit integers "
             "in the forward pass");
}

void declare_gradients(program::Flags flags, Arguments& arguments) {
  GradientOptions& options = arguments.gradient_options;
  flags
      .option("--gradients", arguments.gradients,
              "One run for each: none, fp2 to fp8, a format such as 1-3-2, prune:SPARSITY, "
              "prune:SPARSITY+fp6, or sparse:WEIGHT:INPUT, a sparse backward pass with two "
              "sparsities")
      .show_default(words(arguments.gradients))
      .offer({"none", "fp2", "fp3", "fp4", "fp5", "fp6", "fp7", "fp8"});
  for (const GateSetting& setting : gate_settings()) {
    const std::string name = setting.option.name;
    std::vector<std::string> choices = setting.choices;
    if (name == "prune") std::erase(choices, "none");
    program::Option option =
        flags.option(flag_of(name), options.gate.at(name), help_of(setting, choices));
    if (setting.is_number()) option.range(0, 1000000000).value_name("N");
    option.offer(choices);
  }
  flags
      .option("--target", options.targets,
              "LAYER=COSINE: the cosine similarity that a layer's pruned gradient must keep to the "
              "original, with --allocation")
      .value_name("LAYER=COSINE ...");
  flags.option("--cap", options.cap, "The highest sparsity that --allocation gives a layer")
      .range(0.0, 1.0);
  flags
      .option(
          "--sparse-way", options.sparse_way,
          "Products of a sparse backward pass: auto (dense where that is faster) or always sparse")
      .offer({"auto", "always"});
}

void declare_training(program::Flags flags, Arguments& arguments) {
  TrainingOptions& training = arguments.training;
  flags.option("--epochs", training.epochs, "Passes over the training samples").range(1, 10000);
  flags.option("--batch", training.batch_size, "Samples per step").range(2, 100000);
  flags.option("--optimizer", training.optimizer, "adamw or sgd").one_of({"adamw", "sgd"});
  flags.option("--rate", arguments.rate, "Learning rate at its peak")
      .positive()
      .show_default("0.003, for sgd 0.1");
  flags.option("--momentum", training.momentum, "Momentum of sgd").range(0.0, 0.9999);
  flags.option("--weight-decay", arguments.weight_decay, "Weight decay of the optimizer")
      .range(0.0, 1.0)
      .show_default("0.01, for sgd 0.0005");
  flags
      .option("--schedule", training.schedule,
              "Schedule of the learning rate: onecycle, cosine, step or constant")
      .one_of({"onecycle", "cosine", "step", "constant"});
  flags.option("--seed", training.seed,
               "Seed of generated data, initial weights, order of samples and stochastic rounding");
  flags.option("--threads", arguments.threads, "Threads to use").range(1, 1024);
  flags
      .option("--min-accuracy", arguments.min_accuracy,
              "Exit with status 1 if a run ends below this test accuracy")
      .range(0.0, 1.0)
      .show_default("0.85 for the default network and data");
}

void declare_files(program::Flags flags, Arguments& arguments) {
  TrainingOptions& training = arguments.training;
  flags
      .option("--out", arguments.out,
              "Also write the results to this file, as lines of JSON (docs/runs.md)")
      .offer_files();
  flags
      .option("--probe-at", training.probe_steps,
              "Steps, counted from 1, whose gradients are measured in detail and written to --out")
      .range(1, 1000000000)
      .value_name("STEP ...");
  flags.option("--probe", arguments.probes, "What --probe-at writes: histograms, fits, bits")
      .one_of({"histograms", "fits", "bits"})
      .show_default(words(arguments.probes));
  flags
      .option("--checkpoint", arguments.checkpoint,
              "Write checkpoints to this folder: after every epoch, and when interrupted")
      .offer_files();
  flags.flag("--resume", arguments.resume, "Continue from the checkpoints in --checkpoint");
  flags
      .option("--stop-after-steps", training.stop_after,
              "Stop each run after N steps, as if interrupted")
      .range(1, 1000000000)
      .value_name("N");
}

void expect(bool holds, const std::string& message) {
  if (!holds) throw InvalidArgument(message);
}

bool has(const std::vector<std::string>& values, const char* value) {
  return std::ranges::find(values, value) != values.end();
}

}  // namespace

Arguments::Arguments()
    : threads(static_cast<int>(std::max(1u, std::thread::hardware_concurrency()))) {}

void declare_arguments(program::Flags flags, Arguments& arguments) {
  flags.footer(
      "Examples: is FP4 enough, alone and with 90 % of the gradients pruned?\n"
      "  slimgrad-train --gradients none fp4 prune:0.9+fp4 --epochs 5 --out runs.jsonl\n"
      "A ResNet-20 on CIFAR-10, which may be interrupted with Ctrl-C and resumed:\n"
      "  slimgrad-train --model resnet20 --data cifar10:DIR --optimizer sgd --schedule cosine \\\n"
      "    --batch 128 --epochs 20 --gradients fp4 --checkpoint run --out run.jsonl [--resume]\n"
      "Exit status: 0; 1 if training fails or does not learn; 2 on misuse and unusable data; 3 if\n"
      "interrupted.");
  flags.show_defaults();
  declare_what_is_trained(flags, arguments);
  declare_gradients(flags, arguments);
  declare_training(flags, arguments);
  declare_files(flags, arguments);
}

void settle(Arguments& arguments) {
  TrainingOptions& training = arguments.training;
  const bool is_gpt = arguments.model == "gpt", is_sgd = training.optimizer == "sgd";
  if (arguments.data.empty()) arguments.data = is_gpt ? "grammar" : "glyphs";
  const bool convolutional = !is_gpt && arguments.model != "mlp" && arguments.model != "linear";
  expect(convolutional || arguments.norm.empty(),
         "--norm: expected a --model with convolutions, got " + arguments.model);
  arguments.batch_norm = convolutional && arguments.norm != "none";
  ActivationChoice& activation = arguments.activation_choice;
  activation.function = !arguments.nonlinearity.empty() ? arguments.nonlinearity
                        : is_gpt                        ? "gelu"
                                                        : "relu";
  activation.exact = arguments.activations == "exact";
  expect(!activation.exact || activation.function != "tanh",
         "--activations exact: expected --nonlinearity relu, gelu or silu, got tanh");
  if (arguments.activations.size() == 1) activation.bits = arguments.activations[0] - '0';
  if (arguments.saved != "torch")
    training.saved_bits = arguments.saved == "exact" ? 0 : arguments.saved[0] - '0';
  training.learning_rate = arguments.rate.value_or(is_sgd ? 0.1 : 3e-3);
  training.weight_decay = arguments.weight_decay.value_or(is_sgd ? 5e-4 : 1e-2);
  const bool is_default = arguments.model == "cnn" && arguments.data == "glyphs";
  if (!arguments.min_accuracy) arguments.min_accuracy = is_default ? 0.85 : 0;
  training.histograms = has(arguments.probes, "histograms");
  training.fits = has(arguments.probes, "fits");
  training.bits = has(arguments.probes, "bits");
  expect(training.probe_steps.empty() || !arguments.out.empty(),
         "--probe-at: expected --out FILE as well, got none");
  expect(arguments.probes == Arguments().probes || !training.probe_steps.empty(),
         "--probe: expected --probe-at STEP as well, got none");
  expect(is_sgd || training.momentum == TrainingOptions().momentum,
         "--momentum: expected --optimizer sgd, got " + training.optimizer);
  expect(!arguments.resume || !arguments.checkpoint.empty(),
         "--resume: expected --checkpoint DIR as well, got none");
}

}  // namespace slimgrad::trainer
