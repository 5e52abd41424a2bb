// Scripts that let a shell complete a command line, made from what the program declared: they
// start no program, and so cost nothing when a key is pressed.
#ifndef SLIMGRAD_PROGRAM_COMPLETION_H_
#define SLIMGRAD_PROGRAM_COMPLETION_H_

#include <string>
#include <string_view>
#include <vector>

#include "program/declared.h"

namespace slimgrad::program {

std::vector<std::string> completion_shells();  // "bash", "zsh", "fish"

// The script for one of these shells.
std::string completion_script(const DeclaredCommand& command, std::string_view shell);

}  // namespace slimgrad::program

#endif  // SLIMGRAD_PROGRAM_COMPLETION_H_
