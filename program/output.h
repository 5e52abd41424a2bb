// What a subcommand has to say, in both forms. It is printed only when all of it is there: a
// subcommand that fails half way leaves nothing on standard output.
#ifndef SLIMGRAD_PROGRAM_OUTPUT_H_
#define SLIMGRAD_PROGRAM_OUTPUT_H_

#include <string>

#include "program/json.h"

namespace slimgrad::program {

struct Report {
  Json json = Json::object();
  std::string text;
};

}  // namespace slimgrad::program

#endif  // SLIMGRAD_PROGRAM_OUTPUT_H_
