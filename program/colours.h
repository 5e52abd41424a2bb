// Colours, used only if the output is a terminal.
#ifndef SLIMGRAD_PROGRAM_COLOURS_H_
#define SLIMGRAD_PROGRAM_COLOURS_H_

#include <string>

namespace slimgrad::program {

// Whether the file descriptor is a terminal that understands them. The environment says no by
// NO_COLOR, if that is not empty, and by TERM=dumb.
bool wants_colours(int descriptor);

// Where none are wanted both give the text as it is. The titles of a table are the line above its
// rule of dashes.
std::string red(const std::string& text, int descriptor);
std::string with_bold_titles(const std::string& text, int descriptor);

}  // namespace slimgrad::program

#endif  // SLIMGRAD_PROGRAM_COLOURS_H_
