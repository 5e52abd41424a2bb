// A subcommand is one file. It defines a function that declares its flags and returns what to do
// once they are parsed, and registers it:
//
//   Action declare(Flags& flags) {
//     auto options = std::make_shared<Options>();
//     flags.option("--bits", options->bits, "...");
//     return [options] { return Report{...}; };
//   }
//   const bool registered = register_subcommand({"steps", "one line", "the example", declare});
//
// main() does the rest: --help, --json, errors, exit status. An action reports what is wrong by
// throwing any std::exception whose text is one line; it never prints.
#ifndef SLIMGRAD_PROGRAM_SUBCOMMAND_H_
#define SLIMGRAD_PROGRAM_SUBCOMMAND_H_

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "program/flags.h"

namespace slimgrad::program {

struct Report;  // output.h
using Action = std::function<Report()>;

// What an action has to say, as it goes to standard output.
std::string output_of(const Action& action, bool as_json);

struct Subcommand {
  std::string name;
  std::string summary;
  std::string example;  // printed at the end of --help
  std::function<Action(Flags&)> declare;
};

// Called while static objects are initialised, in no particular order. Returns true.
bool register_subcommand(Subcommand subcommand);

// All of them, by name.
std::vector<Subcommand> subcommands();

// A finite number, or two with a separator between them: "3", "-10,10". Throws UsageError, which
// names the flag.
double parse_number(const std::string& flag, std::string_view text);
std::pair<double, double> parse_pair(const std::string& flag, std::string_view text,
                                     char separator);

}  // namespace slimgrad::program

#endif  // SLIMGRAD_PROGRAM_SUBCOMMAND_H_
