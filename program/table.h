// Text for people: tables with aligned columns, numbers, colours.
#ifndef SLIMGRAD_PROGRAM_TABLE_H_
#define SLIMGRAD_PROGRAM_TABLE_H_

#include <cstdint>
#include <string>
#include <vector>

namespace slimgrad::program {

enum class Align { kLeft, kRight };

struct Column {
  std::string title;
  Align align = Align::kRight;
};

class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // A row shorter than the header is filled up with empty cells. REQUIRES: not longer. Cells are
  // made printable.
  void add(std::vector<std::string> cells);

  // The header, a line, the rows; every line ends with a newline and has no spaces before it.
  // Without a single title there is no header and no line.
  std::string text() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// Text as one may print it on a terminal: '?' for control characters, which a name from a file may
// bring with it.
std::string printable(std::string text);

// "64 x 128", or "scalar".
std::string shape_text(const std::vector<std::uint64_t>& shape);
// A number for a reader: six significant digits, "inf", "nan".
std::string number(double value);
// A fraction as "85.0 %".
std::string percent(double fraction);

// ---- colours, used only if the output is a terminal --------------------------------------------

// Whether the file descriptor is a terminal that understands them. The environment says no by
// NO_COLOR, if that is not empty, and by TERM=dumb.
bool wants_colours(int descriptor);

// Where none are wanted both give the text as it is. The titles of a table are the line above its
// rule of dashes.
std::string red(const std::string& text, int descriptor);
std::string with_bold_titles(const std::string& text, int descriptor);

}  // namespace slimgrad::program

#endif  // SLIMGRAD_PROGRAM_TABLE_H_
