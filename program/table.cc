#include "program/table.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <utility>

namespace slimgrad::program {
namespace {

// The cells of one line, padded to the widths of their columns, two spaces between them.
std::string line_of(const std::vector<Column>& columns, const std::vector<std::size_t>& widths,
                    const std::vector<std::string>& cells) {
  std::string line;
  for (std::size_t i = 0; i < columns.size(); ++i) {
    if (i > 0) line += "  ";
    const std::string padding(widths[i] - cells[i].size(), ' ');
    line += columns[i].align == Align::kLeft ? cells[i] + padding : padding + cells[i];
  }
  line.erase(line.find_last_not_of(' ') + 1);
  return line + '\n';
}

std::string coloured(const std::string& code, const std::string& text) {
  return "\x1b[" + code + 'm' + text + "\x1b[0m";
}

}  // namespace

void Table::add(std::vector<std::string> cells) {
  cells.resize(columns_.size());
  for (std::string& cell : cells) cell = printable(std::move(cell));
  rows_.push_back(std::move(cells));
}

std::string Table::text() const {
  std::vector<std::string> titles;
  std::vector<std::size_t> widths;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    titles.push_back(columns_[i].title);
    widths.push_back(columns_[i].title.size());
    for (const auto& row : rows_) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  if (std::ranges::any_of(titles, [](const std::string& title) { return !title.empty(); })) {
    std::vector<std::string> rules;
    for (const std::size_t width : widths) rules.emplace_back(width, '-');
    text += line_of(columns_, widths, titles) + line_of(columns_, widths, rules);
  }
  for (const auto& row : rows_) text += line_of(columns_, widths, row);
  return text;
}

std::string printable(std::string text) {
  std::ranges::replace_if(
      text, [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
  return text;
}

std::string shape_text(const std::vector<std::uint64_t>& shape) {
  if (shape.empty()) return "scalar";
  std::string text;
  for (const std::uint64_t length : shape)
    text += (text.empty() ? "" : " x ") + std::to_string(length);
  return text;
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

std::string percent(double fraction) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %%", 100 * fraction);
  return text;
}

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
