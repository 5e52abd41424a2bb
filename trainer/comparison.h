// Trains a network several times, which differ in the gradients alone.
#ifndef SLIMGRAD_TRAINER_COMPARISON_H_
#define SLIMGRAD_TRAINER_COMPARISON_H_

#include <vector>

#include "trainer/arguments.h"
#include "trainer/run.h"

namespace slimgrad::trainer {

// Sets the state of every run, as far as it came: false if it was interrupted. Says on standard
// output and standard error how far it is, and writes what the arguments ask for. Throws
// InvalidArgument, before anything is trained, for data, files or checkpoints that will not do.
bool train_all(Arguments& arguments, std::vector<Run>& runs);

}  // namespace slimgrad::trainer

#endif  // SLIMGRAD_TRAINER_COMPARISON_H_
