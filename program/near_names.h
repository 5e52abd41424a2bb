// Suggests existing names that are close to a mistyped one.
#ifndef SLIMGRAD_PROGRAM_NEAR_NAMES_H_
#define SLIMGRAD_PROGRAM_NEAR_NAMES_H_

#include <span>
#include <string>
#include <vector>

namespace slimgrad::program {

// At most three of the names, the nearest first: those that contain `name`, or can be made from it
// by few insertions, deletions and replacements of characters.
std::vector<std::string> near_names(const std::string& name, std::span<const std::string> names);

}  // namespace slimgrad::program

#endif  // SLIMGRAD_PROGRAM_NEAR_NAMES_H_
