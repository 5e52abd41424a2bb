// Which commit the program was built from, for the record of a run.
#ifndef SLIMGRAD_TRAINER_COMMIT_H_
#define SLIMGRAD_TRAINER_COMMIT_H_

namespace slimgrad::trainer {

// As `git describe --always --dirty` has it; "unknown" outside of a checkout. The build writes it
// (cmake/BuildCommit.cmake).
const char* build_commit();

}  // namespace slimgrad::trainer

#endif  // SLIMGRAD_TRAINER_COMMIT_H_
