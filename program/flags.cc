#include "program/flags.h"

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <sstream>
#include <type_traits>

#include "program/declared.h"

namespace slimgrad::program {
namespace {

// "--train-size,--images" as two.
std::vector<std::string> split_names(const std::string& names) {
  std::vector<std::string> result;
  std::istringstream stream(names);
  for (std::string name; std::getline(stream, name, ',');) result.push_back(name);
  return result;
}

template <typename Value>
constexpr bool kIsVector = false;
template <typename Value>
constexpr bool kIsVector<std::vector<Value>> = true;

}  // namespace

Option& Option::required() {
  option_->required();
  return *this;
}

Option& Option::show_default() {
  option_->capture_default_str();
  return *this;
}

Option& Option::show_default(const std::string& text) {
  option_->default_str(text);
  return *this;
}

Option& Option::value_name(const std::string& name) {
  option_->type_name(name);
  return *this;
}

Option& Option::range(int low, int high) {
  option_->check(CLI::Range(low, high));
  return *this;
}

Option& Option::range(double low, double high) {
  option_->check(CLI::Range(low, high));
  return *this;
}

Option& Option::positive() {
  option_->check(CLI::PositiveNumber);
  return *this;
}

Option& Option::one_of(const std::vector<std::string>& values) {
  option_->check(CLI::IsMember(values));
  return offer(values);
}

Option& Option::separator(char c) {
  option_->delimiter(c);
  return *this;
}

Option& Option::one_at_a_time() {
  option_->allow_extra_args(false);
  declared_->takes_many = false;
  return *this;
}

Option& Option::excludes(const Option& other) {
  option_->excludes(other.option_);
  return *this;
}

Option& Option::offer(const std::vector<std::string>& values) {
  declared_->values = values;
  return *this;
}

Option& Option::offer_files(const std::vector<std::string>& endings) {
  declared_->takes_file = true;
  declared_->endings = endings;
  return *this;
}

template <typename Value>
Option Flags::option(const std::string& name, Value& value, const std::string& help) {
  CLI::Option* const option = app_->add_option(name, value, help);
  // CLI11 reads -1 as 2^64 - 1.
  if constexpr (std::is_unsigned_v<Value>)
    option->check(CLI::Validator(
        [](const std::string& text) {
          return text.starts_with('-') ? "expected a number that is not negative, got " + text : "";
        },
        ""));
  declared_->options.push_back({.names = split_names(name),
                                .help = help,
                                .takes_value = true,
                                .takes_many = kIsVector<Value>});
  return Option(option, &declared_->options.back());
}
template Option Flags::option(const std::string&, int&, const std::string&);
template Option Flags::option(const std::string&, std::int64_t&, const std::string&);
template Option Flags::option(const std::string&, std::uint64_t&, const std::string&);
template Option Flags::option(const std::string&, double&, const std::string&);
template Option Flags::option(const std::string&, std::optional<double>&, const std::string&);
template Option Flags::option(const std::string&, std::string&, const std::string&);
template Option Flags::option(const std::string&, std::vector<int>&, const std::string&);
template Option Flags::option(const std::string&, std::vector<std::string>&, const std::string&);

void Flags::flag(const std::string& name, bool& value, const std::string& help) {
  app_->add_flag(name, value, help);
  declared_->options.push_back({.names = split_names(name), .help = help});
}

void Flags::show_defaults() { app_->option_defaults()->always_capture_default(); }

void Flags::footer(const std::string& text) { app_->footer(text); }

bool Flags::parsed() const { return app_->parsed(); }

CommandLine::CommandLine(const std::string& name, const std::string& summary,
                         const std::string& version)
    : app_(std::make_unique<CLI::App>(summary, name)),
      declared_(
          std::make_unique<DeclaredCommand>(DeclaredCommand{.name = name, .summary = summary})) {
  app_->set_version_flag("--version", version);
}

CommandLine::~CommandLine() = default;

Flags CommandLine::flags() { return Flags(app_.get(), declared_.get()); }

Flags CommandLine::subcommand(const std::string& name, const std::string& summary) {
  app_->require_subcommand(0, 1);  // also lets an argument have the name of a subcommand
  declared_->subcommands.push_back({.name = name, .summary = summary});
  return Flags(app_->add_subcommand(name, summary), &declared_->subcommands.back());
}

bool CommandLine::parse(int argc, char** argv) {
  try {
    app_->parse(argc, argv);
    return true;
  } catch (const CLI::Success& help_or_version) {
    app_->exit(help_or_version);
    return false;
  } catch (const CLI::ParseError& error) {
    throw UsageError(error.what());
  }
}

std::string CommandLine::help() const { return app_->help(); }

}  // namespace slimgrad::program
