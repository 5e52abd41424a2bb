// The command line of a program: as much of CLI11 as the programs need. Only flags.cc includes it,
// because it costs seconds in every file that does.
//
//   CommandLine line("slimgrad", "What it does.", "slimgrad 0.2.0");
//   line.flags().option("--bits", bits, "Bits per element").value_name("N").range(1, 5);
//   if (!line.parse(argc, argv)) return 0;
//
// What is declared here is what --help prints. The variables must outlive parse().
#ifndef SLIMGRAD_PROGRAM_FLAGS_H_
#define SLIMGRAD_PROGRAM_FLAGS_H_

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace slimgrad::program {

// Arguments that are wrong or do not go together, in one line.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct DeclaredCommand;  // declared.h
struct DeclaredOption;

// Something that takes values. A handle: copies are the same option.
class Option {
 public:
  Option(CLI::Option* option, DeclaredOption* declared) : option_(option), declared_(declared) {}

  Option& required();
  Option& show_default();                         // the variable's value, now
  Option& show_default(const std::string& text);  // in other words
  Option& value_name(const std::string& name);    // in --help, instead of the type
  Option& range(int low, int high);               // of every value, both included
  Option& range(double low, double high);
  Option& positive();
  Option& one_of(const std::vector<std::string>& values);
  Option& separator(char c);  // between values in one argument
  Option& one_at_a_time();    // of a vector: a value for each time that the option is given
  Option& excludes(const Option& other);

  // For completion alone: words that shells offer as a value, or files with these endings.
  Option& offer(const std::vector<std::string>& values);
  Option& offer_files(const std::vector<std::string>& endings = {});

 private:
  CLI::Option* option_;
  DeclaredOption* declared_;
};

// Where flags are declared: the program's own, or those of a subcommand. A handle, too.
class Flags {
 public:
  Flags(CLI::App* app, DeclaredCommand* declared) : app_(app), declared_(declared) {}

  // "--bits" takes a value, "FILE" is an argument by position. `value` is left alone unless one is
  // given; a vector takes one or more. For int, int64_t, uint64_t, double, std::string,
  // std::optional<double> and vectors of int and std::string.
  template <typename Value>
  Option option(const std::string& name, Value& value, const std::string& help);
  void flag(const std::string& name, bool& value, const std::string& help);

  void show_defaults();                  // of all options from here on
  void footer(const std::string& text);  // the end of --help
  bool parsed() const;                   // of a subcommand: whether it was given

 private:
  CLI::App* app_;
  DeclaredCommand* declared_;
};

class CommandLine {
 public:
  // --help begins with `summary`, and --version prints `version`.
  CommandLine(const std::string& name, const std::string& summary, const std::string& version);
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  Flags flags();
  // At most one subcommand is given.
  Flags subcommand(const std::string& name, const std::string& summary);

  // Sets the variables. False if --help or --version was given, and has been printed. Throws
  // UsageError.
  bool parse(int argc, char** argv);
  std::string help() const;

  // All that was declared so far.
  const DeclaredCommand& declared() const { return *declared_; }

 private:
  std::unique_ptr<CLI::App> app_;
  std::unique_ptr<DeclaredCommand> declared_;
};

}  // namespace slimgrad::program

#endif  // SLIMGRAD_PROGRAM_FLAGS_H_
