// What a command line was declared to take, as the scripts that complete it need it.
#ifndef SLIMGRAD_PROGRAM_DECLARED_H_
#define SLIMGRAD_PROGRAM_DECLARED_H_

#include <list>
#include <string>
#include <vector>

namespace slimgrad::program {

struct DeclaredOption {
  std::vector<std::string> names;  // "--bits", or one name without dashes: an argument by position
  std::string help = {};
  bool takes_value = false;
  bool takes_many = false;               // values one after the other
  std::vector<std::string> values = {};  // that may be offered; empty: whatever the user means
  bool takes_file = false;
  std::vector<std::string> endings = {};  // of its files; empty: any

  bool by_position() const { return !names[0].starts_with('-'); }
};

// Lists, because flags.h hands out pointers to their elements.
struct DeclaredCommand {
  std::string name, summary = {};
  std::list<DeclaredOption> options = {};
  std::list<DeclaredCommand> subcommands = {};
};

}  // namespace slimgrad::program

#endif  // SLIMGRAD_PROGRAM_DECLARED_H_
