// The process that trains: how it shows progress, whether it was asked to stop, and where it runs.
#ifndef SLIMGRAD_TRAINER_PROCESS_H_
#define SLIMGRAD_TRAINER_PROCESS_H_

#include <chrono>
#include <cstdint>
#include <string>

#include "trainer/run.h"

namespace slimgrad::trainer {

// The progress of the training on standard error: on a terminal, one line that is rewritten in
// place; elsewhere, where the output is a log, one line per epoch.
class ProgressLine {
 public:
  // `samples`: what they are called.
  ProgressLine(int num_runs, std::string samples);
  ~ProgressLine();  // ends the line
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void begin_run(std::string name);  // the next one
  void show(const Progress& progress);

 private:
  int num_runs_, run_ = 0;
  std::string samples_;
  std::string name_;
  bool terminal_, line_is_open_ = false;
  std::chrono::steady_clock::time_point last_shown_{};
};

// SIGINT (Ctrl-C) and SIGTERM set a flag, and the training stops after its step. A second signal
// ends the program at once.
void watch_for_interruption();
bool interrupted();

// The processor's name, as the kernel has it, and the number of those that the process may use.
std::string machine();

// The most memory that was resident in this process, in bytes.
std::uint64_t peak_memory();

// The commit that the program was built from, as `git describe --always --dirty` prints it;
// "unknown" outside of a checkout. The build writes the function (cmake/BuildCommit.cmake).
const char* build_commit();

}  // namespace slimgrad::trainer

#endif  // SLIMGRAD_TRAINER_PROCESS_H_
