#include "trainer/progress_line.h"

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <utility>

namespace slimgrad::trainer {

std::string clock_text(double seconds) {
  const auto whole = static_cast<long long>(std::ceil(seconds));
  char text[32];
  std::snprintf(text, sizeof text, "%lld:%02lld", whole / 60, whole % 60);
  return text;
}

ProgressLine::ProgressLine(int num_runs, std::string samples)
    : num_runs_(num_runs), samples_(std::move(samples)), terminal_(isatty(STDERR_FILENO) == 1) {}

ProgressLine::~ProgressLine() {
  if (line_is_open_) std::fputc('\n', stderr);
}

void ProgressLine::begin_run(std::string name) {
  name_ = std::move(name);
  ++run_;
}

void ProgressLine::show(const Progress& progress) {
  using namespace std::chrono_literals;
  const auto now = std::chrono::steady_clock::now();
  if (!progress.last_of_epoch && (!terminal_ || now - last_shown_ < 200ms)) return;
  last_shown_ = now;
  // Steps left in this command: runs that have not begun are taken to be as long as this one.
  const auto steps_left = static_cast<double>(progress.num_steps - progress.step +
                                              (num_runs_ - run_) * progress.num_steps);
  line_is_open_ = terminal_ && progress.step < progress.num_steps;
  std::fprintf(stderr,
               "%s[%d/%d] %-14s epoch %d/%d  step %4lld/%lld  loss %.3f  accuracy %4.1f %%  "
               "%.0f %s/s  ETA %s%s",
               terminal_ ? "\r\x1b[K" : "", run_, num_runs_, name_.c_str(), progress.epoch,
               progress.num_epochs, static_cast<long long>(progress.step),
               static_cast<long long>(progress.num_steps), progress.loss, 100 * progress.accuracy,
               progress.samples_per_second, samples_.c_str(),
               clock_text(steps_left * static_cast<double>(progress.batch_size) /
                          progress.samples_per_second)
                   .c_str(),
               line_is_open_ ? "" : "\n");
  std::fflush(stderr);
}

}  // namespace slimgrad::trainer
