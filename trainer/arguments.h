// What slimgrad-train is told on its command line.
#ifndef SLIMGRAD_TRAINER_ARGUMENTS_H_
#define SLIMGRAD_TRAINER_ARGUMENTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "program/flags.h"
#include "trainer/data_set.h"
#include "trainer/gradient_choice.h"
#include "trainer/run.h"

namespace slimgrad::trainer {

// Empty texts and optional numbers stand for what fits the model, the data or the optimizer;
// settle() fills them in.
struct Arguments {
  Arguments();  // the defaults, with a thread for each of the machine's

  std::string model = "cnn", data;
  SampleLimits limits;
  std::string norm, nonlinearity, activations = "torch", saved = "torch", augment;
  bool fake_int4 = false;

  std::vector<std::string> gradients{"none", "fp6", "prune:0.85"};
  GradientOptions gradient_options;

  TrainingOptions training;
  std::optional<double> rate, weight_decay;
  std::vector<std::string> probes{"histograms", "fits", "bits"};

  int threads = 1;
  std::optional<double> min_accuracy;
  std::string out, checkpoint;
  bool resume = false;

  // By settle().
  ActivationChoice activation_choice;
  bool batch_norm = true;
};

// REQUIRES: `arguments` outlives the parsing.
void declare_arguments(program::Flags flags, Arguments& arguments);

// After parsing. Throws InvalidArgument for what does not go together.
void settle(Arguments& arguments);

}  // namespace slimgrad::trainer

#endif  // SLIMGRAD_TRAINER_ARGUMENTS_H_
