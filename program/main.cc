// slimgrad: the closed forms and the statistics of the library on the command line. Exit status: 0,
// or 2 with one line on standard error and nothing on standard output.
#include <slimgrad/version.h>

#include <unistd.h>

#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "program/completion.h"
#include "program/flags.h"
#include "program/subcommand.h"
#include "program/table.h"

namespace slimgrad::program {
namespace {

constexpr int kFailure = 2;

// One line, whatever a file name or an argument brings with it.
int fail(const std::string& message) {
  std::fprintf(stderr, "%s %s\n", red("slimgrad:", STDERR_FILENO).c_str(),
               printable(message).c_str());
  return kFailure;
}

int print(const std::string& text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (std::fflush(stdout) != 0 || !written) return fail("cannot write to standard output");
  return 0;
}

// The commands that need torch are Python's.
void check_program(int argc, char** argv) {
  const std::string command = argc > 1 ? argv[1] : "";
  for (const char* const of_python : {"doctor", "estimate", "report"})
    if (command == of_python)
      throw UsageError(command + " needs torch: python -m slimgrad " + command);
}

constexpr char kCompletionHelp[] =
    R"help(Where shells look for it, for this user:
  $ slimgrad completion bash > ~/.local/share/bash-completion/completions/slimgrad
  $ slimgrad completion zsh > "${fpath[1]}/_slimgrad"
  $ slimgrad completion fish > ~/.config/fish/completions/slimgrad.fish
slimgrad-train --completion SHELL prints its own.)help";

int run(int argc, char** argv) {
  CommandLine line("slimgrad",
                   "Gradient compression in numbers: formats, thresholds, step tables, fits.",
                   "slimgrad " SLIMGRAD_VERSION);
  bool as_json = false;
  std::vector<std::pair<Flags, Action>> actions;
  for (const Subcommand& subcommand : subcommands()) {
    Flags flags = line.subcommand(subcommand.name, subcommand.summary);
    flags.footer(subcommand.example);
    actions.emplace_back(flags, subcommand.declare(flags));
    flags.flag("--json", as_json, "Print one JSON object; numbers that are not finite are null");
  }
  std::string shell;
  Flags completion = line.subcommand("completion", "A script that completes commands in a shell");
  completion.footer(kCompletionHelp);
  completion.option("SHELL", shell, "bash, zsh or fish")
      .required()
      .value_name("")
      .one_of(completion_shells());

  check_program(argc, argv);
  if (!line.parse(argc, argv)) return 0;
  for (const auto& [flags, action] : actions)
    if (flags.parsed()) return print(with_bold_titles(output_of(action, as_json), STDOUT_FILENO));
  if (completion.parsed()) return print(completion_script(line.declared(), shell));
  std::fputs(line.help().c_str(), stderr);
  return kFailure;
}

}  // namespace
}  // namespace slimgrad::program

int main(int argc, char** argv) {
  using slimgrad::program::fail;
  try {
    return slimgrad::program::run(argc, argv);
  } catch (const std::bad_alloc&) {
    return fail("not enough memory");
  } catch (const std::exception& error) {
    return fail(error.what());
  }
}
