// Trains a network several times, which differ in the gradients alone.
#ifndef SLIMGRAD_TRAINER_COMPARISON_H_
#define SLIMGRAD_TRAINER_COMPARISON_H_

#include <vector>

#include "trainer/arguments.h"
#include "trainer/run.h"

namespace slimgrad::trainer {

// Sets the result of every run. Says on standard output and standard error how far it is.
void train_all(const Arguments& arguments, std::vector<Run>& runs);

}  // namespace slimgrad::trainer

#endif  // SLIMGRAD_TRAINER_COMPARISON_H_
