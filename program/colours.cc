#include "program/colours.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <sstream>

namespace slimgrad::program {
namespace {

std::string coloured(const std::string& code, const std::string& text) {
  return "\x1b[" + code + 'm' + text + "\x1b[0m";
}

}  // namespace

bool wants_colours(int descriptor) {
  const char* const no_color = std::getenv("NO_COLOR");
  if (no_color != nullptr && *no_color != '\0') return false;
  const char* const terminal = std::getenv("TERM");
  if (terminal == nullptr || std::strcmp(terminal, "dumb") == 0) return false;
  return isatty(descriptor) == 1;
}

std::string red(const std::string& text, int descriptor) {
  return wants_colours(descriptor) ? coloured("1;31", text) : text;
}

std::string with_bold_titles(const std::string& text, int descriptor) {
  if (!wants_colours(descriptor)) return text;
  std::string result, line, before;
  std::istringstream lines(text);
  while (std::getline(lines, line)) {
    const bool is_rule = line.starts_with('-') && line.find_first_not_of("- ") == line.npos;
    result += is_rule ? coloured("1", before) : before;
    before = line + '\n';
  }
  return result + before;
}

}  // namespace slimgrad::program
