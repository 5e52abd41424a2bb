// What a subcommand has to say, in both forms. It is printed only when all of it is there: a
// subcommand that fails half way leaves nothing on standard output.
#ifndef SLIMGRAD_PROGRAM_OUTPUT_H_
#define SLIMGRAD_PROGRAM_OUTPUT_H_

#include <nlohmann/json.hpp>
#include <string>

namespace slimgrad::program {

// Keys in the order in which they were put in. Numbers that are not finite become null.
using Json = nlohmann::ordered_json;

struct Report {
  Json json = Json::object();
  std::string text;
};

// The report as it goes to standard output. A file name need not be UTF-8, but JSON is: what is not
// becomes U+FFFD.
inline std::string render(const Report& report, bool as_json) {
  if (!as_json) return report.text;
  return report.json.dump(2, ' ', false, Json::error_handler_t::replace) + '\n';
}

}  // namespace slimgrad::program

#endif  // SLIMGRAD_PROGRAM_OUTPUT_H_
