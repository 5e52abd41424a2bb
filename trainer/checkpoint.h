// A run on disk, to go on from to the bit: the configuration, where the run stands, what the
// network, its gates and the optimizer hold, and the order of the samples.
#ifndef SLIMGRAD_TRAINER_CHECKPOINT_H_
#define SLIMGRAD_TRAINER_CHECKPOINT_H_

#include <filesystem>
#include <optional>
#include <string>

#include "trainer/run.h"

namespace slimgrad::trainer {

class Training;

// Written beside the file and renamed, so that there is always a whole one. Throws
// std::runtime_error.
void write_checkpoint(const std::filesystem::path& path, const std::string& configuration,
                      const RunState& state, Training& training);

// The two halves of reading: what is needed before there is a network, and the rest. Both throw
// InvalidArgument, in one line, for a file that is damaged or of another program.
struct CheckpointHead {
  std::string configuration;
  RunState state;
};
CheckpointHead read_checkpoint_head(const std::filesystem::path& path);
void read_checkpoint(const std::filesystem::path& path, Training& training);

}  // namespace slimgrad::trainer

#endif  // SLIMGRAD_TRAINER_CHECKPOINT_H_
