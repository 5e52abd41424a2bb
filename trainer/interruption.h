// Ctrl-C, or a polite request to end (SIGINT, SIGTERM): noted, for the training to stop after its
// step. A second one ends the program at once.
#ifndef SLIMGRAD_TRAINER_INTERRUPTION_H_
#define SLIMGRAD_TRAINER_INTERRUPTION_H_

namespace slimgrad::trainer {

void watch_for_interruption();
bool interrupted();

}  // namespace slimgrad::trainer

#endif  // SLIMGRAD_TRAINER_INTERRUPTION_H_
