#include "program/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "program/table.h"

namespace slimgrad::program {
namespace {

// The width of the terminal. A longer text would wrap to the next line, where it cannot be erased.
std::size_t line_width() {
  winsize size = {};
  const bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
  return known ? size.ws_col - std::size_t{1} : 79;
}

// Cuts `text` to at most `width` bytes, hence columns, without half a UTF-8 character at the end.
void cut(std::string& text, std::size_t width) {
  if (text.size() <= width) return;
  while (width > 0 && (static_cast<unsigned char>(text[width]) & 0xc0) == 0x80) --width;
  text.resize(width);
}

// "[####      ]", `width` characters wide.
std::string bar(int percent, std::size_t width) {
  const std::size_t inside = std::max<std::size_t>(width, 2) - 2;
  const std::size_t full = inside * static_cast<std::size_t>(std::max(percent, 0)) / 100;
  return '[' + std::string(full, '#') + std::string(inside - full, ' ') + ']';
}

}  // namespace

std::string file_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

void declare_quiet(Flags& flags, bool& quiet) {
  flags.flag("--quiet", quiet, "Show no progress on the terminal");
}

Progress::Progress(std::string what, std::uint64_t num_bytes, bool quiet)
    : what_(std::move(what)),
      num_bytes_(num_bytes),
      visible_(!quiet && num_bytes > kSilentBytes && isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  if (visible_) std::fputs("\r\x1b[K", stderr);
}

void Progress::part(std::string name, std::uint64_t num_bytes) {
  before_ += part_bytes_;
  part_bytes_ = num_bytes;
  part_ = std::move(name);
  activity_.clear();
  percent_ = -1;
  done(0);
}

void Progress::done(std::uint64_t num_bytes) {
  if (!visible_) return;
  const double share = static_cast<double>(before_ + std::min(num_bytes, part_bytes_)) /
                       static_cast<double>(num_bytes_);
  const int percent = std::min(100, static_cast<int>(100 * share));
  if (percent == percent_) return;
  percent_ = percent;
  show();
}

void Progress::done_of(std::uint64_t share, std::uint64_t whole) {
  const double fraction = static_cast<double>(share) / static_cast<double>(whole);
  done(static_cast<std::uint64_t>(fraction * static_cast<double>(part_bytes_)));
}

void Progress::step(std::string activity) {
  activity_ = std::move(activity);
  if (visible_) show();
}

void Progress::show() {
  const std::size_t width = line_width();
  std::string text =
      what_ + ": " + std::to_string(std::max(percent_, 0)) + " % " + bar(percent_, width / 4);
  for (const std::string* word : {&part_, &activity_})
    if (!word->empty()) text += ", " + *word;
  text = printable(std::move(text));
  cut(text, width);
  std::fprintf(stderr, "\r\x1b[K%s", text.c_str());
  std::fflush(stderr);
}

}  // namespace slimgrad::program
