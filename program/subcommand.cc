#include "program/subcommand.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "program/output.h"

namespace slimgrad::program {
namespace {

// Inside a function, so that it exists before the first registration, whichever file that is in.
std::vector<Subcommand>& registry() {
  static std::vector<Subcommand> all;
  return all;
}

}  // namespace

bool register_subcommand(Subcommand subcommand) {
  registry().push_back(std::move(subcommand));
  return true;
}

std::vector<Subcommand> subcommands() {
  std::vector<Subcommand> all = registry();
  std::ranges::sort(all, {}, &Subcommand::name);
  return all;
}

std::string output_of(const Action& action, bool as_json) {
  const Report report = action();
  // A file name need not be UTF-8, but JSON is.
  return as_json ? indented_json_text(report.json) + '\n' : report.text;
}

double parse_number(const std::string& flag, std::string_view text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || !std::isfinite(value))
    throw UsageError(flag + ": expected a number, got '" + std::string(text) + "'");
  return value;
}

std::pair<double, double> parse_pair(const std::string& flag, std::string_view text,
                                     char separator) {
  const std::size_t middle = text.find(separator);
  if (middle == std::string_view::npos)
    throw UsageError(flag + ": expected two numbers with '" + separator + "' between them, got '" +
                     std::string(text) + "'");
  return {parse_number(flag, text.substr(0, middle)), parse_number(flag, text.substr(middle + 1))};
}

}  // namespace slimgrad::program
