// What slimgrad-train is told on its command line.
#ifndef SLIMGRAD_TRAINER_ARGUMENTS_H_
#define SLIMGRAD_TRAINER_ARGUMENTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "program/flags.h"
#include "trainer/run.h"

namespace slimgrad::trainer {

struct Arguments {
  Arguments();  // the defaults, with a thread for each of the machine's

  std::vector<std::string> gradients{"none", "fp6", "prune:0.85"};
  std::string model = "cnn";
  std::int64_t num_images = 8000, num_test_images = 2000;
  TrainingOptions training;
  int threads = 1;
  double min_accuracy = 0.85;
  std::string out;
};

// REQUIRES: `arguments` outlives the parsing.
void declare_arguments(program::Flags flags, Arguments& arguments);

}  // namespace slimgrad::trainer

#endif  // SLIMGRAD_TRAINER_ARGUMENTS_H_
