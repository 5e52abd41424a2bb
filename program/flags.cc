#include "program/flags.h"

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <type_traits>

namespace slimgrad::program {

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
  return *this;
}

Option& Option::separator(char c) {
  option_->delimiter(c);
  return *this;
}

Option& Option::one_at_a_time() {
  option_->allow_extra_args(false);
  return *this;
}

Option& Option::excludes(const Option& other) {
  option_->excludes(other.option_);
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
  return Option(option);
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
}

void Flags::show_defaults() { app_->option_defaults()->always_capture_default(); }

void Flags::footer(const std::string& text) { app_->footer(text); }

bool Flags::parsed() const { return app_->parsed(); }

CommandLine::CommandLine(const std::string& name, const std::string& summary,
                         const std::string& version)
    : app_(std::make_unique<CLI::App>(summary, name)) {
  app_->set_version_flag("--version", version);
}

CommandLine::~CommandLine() = default;

Flags CommandLine::flags() { return Flags(app_.get()); }

Flags CommandLine::subcommand(const std::string& name, const std::string& summary) {
  app_->require_subcommand(0, 1);  // also lets an argument have the name of a subcommand
  return Flags(app_->add_subcommand(name, summary));
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
