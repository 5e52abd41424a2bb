#include "program/progress.h"

#include <unistd.h>

#include <cstdio>
#include <utility>

namespace slimgrad::program {

Progress::Progress(std::string what, std::uint64_t num_bytes)
    : what_(std::move(what)),
      num_bytes_(num_bytes),
      visible_(num_bytes > kSilentBytes && isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  if (visible_) std::fputs("\r\x1b[K", stderr);
}

void Progress::done(std::uint64_t num_bytes) {
  if (!visible_) return;
  const int percent =
      static_cast<int>(100.0 * static_cast<double>(num_bytes) / static_cast<double>(num_bytes_));
  if (percent == last_percent_) return;
  last_percent_ = percent;
  show(std::to_string(percent) + " %");
}

void Progress::done_of(std::uint64_t part, std::uint64_t whole) {
  const double share = static_cast<double>(part) / static_cast<double>(whole);
  done(static_cast<std::uint64_t>(share * static_cast<double>(num_bytes_)));
}

void Progress::step(const std::string& activity) {
  if (visible_) show(activity);
}

void Progress::show(const std::string& text) {
  std::fprintf(stderr, "\r\x1b[K%s: %s", what_.c_str(), text.c_str());
  std::fflush(stderr);
}

}  // namespace slimgrad::program
