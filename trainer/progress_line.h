// The line that tells how training is going: rewritten in place on a terminal; elsewhere, where
// the output is a log, one line per epoch.
#ifndef SLIMGRAD_TRAINER_PROGRESS_LINE_H_
#define SLIMGRAD_TRAINER_PROGRESS_LINE_H_

#include <chrono>
#include <string>

#include "trainer/run.h"

namespace slimgrad::trainer {

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

// "1:05" for 65 seconds.
std::string clock_text(double seconds);

}  // namespace slimgrad::trainer

#endif  // SLIMGRAD_TRAINER_PROGRESS_LINE_H_
