#include "trainer/process.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <thread>
#include <utility>

namespace slimgrad::trainer {
namespace {

// "1:05" for 65 seconds.
std::string clock_text(double seconds) {
  const auto whole = static_cast<long long>(std::ceil(seconds));
  char text[32];
  std::snprintf(text, sizeof text, "%lld:%02lld", whole / 60, whole % 60);
  return text;
}

volatile std::sig_atomic_t was_interrupted = 0;

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown processor";  // Arm's kernels name none
}

}  // namespace

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

void watch_for_interruption() {
  struct sigaction action = {};
  action.sa_handler = [](int) { was_interrupted = 1; };
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);  // the next one is not caught
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool interrupted() { return was_interrupted != 0; }

std::string machine() {
  return processor_name() + ", " + std::to_string(std::thread::hardware_concurrency()) + " threads";
}

std::uint64_t peak_memory() {
  struct rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
}

}  // namespace slimgrad::trainer
