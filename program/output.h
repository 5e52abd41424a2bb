// What a subcommand has to say, in both forms, and JSON as the program reads and writes it. The
// parser and the serializer are slow to compile, so they are compiled in output.cc alone; the
// library's own parse() and dump() work as well.
#ifndef SLIMGRAD_PROGRAM_OUTPUT_H_
#define SLIMGRAD_PROGRAM_OUTPUT_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

namespace slimgrad::program {

// Keys in the order in which they were put in. Numbers that are not finite become null.
using Json = nlohmann::ordered_json;

// A discarded value, of which is_discarded() is true and all else is false, if it is no JSON.
Json parse_json(std::span<const std::uint8_t> text);
// In one line. Throws Json::exception if a string is not UTF-8.
std::string json_text(const Json& json);
// For a reader, indented. What is not UTF-8 becomes U+FFFD.
std::string indented_json_text(const Json& json);

// It is printed only when all of it is there: a subcommand that fails half way leaves nothing on
// standard output.
struct Report {
  Json json = Json::object();
  std::string text;
};

}  // namespace slimgrad::program

#endif  // SLIMGRAD_PROGRAM_OUTPUT_H_
