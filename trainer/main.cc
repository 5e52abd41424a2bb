// slimgrad-train: trains a network, plainly and with compressed gradients, and compares. Exit
// status: 0; 1 if training fails or does not learn; 2 on misuse and unusable data; 3 if
// interrupted. All but the first say why in one line on standard error.
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include <slimgrad/error.h>
#include <slimgrad/version.h>

#include "program/completion.h"
#include "program/flags.h"
#include "program/table.h"
#include "trainer/arguments.h"
#include "trainer/comparison.h"
#include "trainer/gradient_choice.h"
#include "trainer/process.h"

namespace slimgrad::trainer {
namespace {

constexpr int kFailed = 1, kMisused = 2, kInterrupted = 3;

int fail(int status, const std::string& message) {
  std::fprintf(stderr, "%s %s\n", program::red("slimgrad-train:", STDERR_FILENO).c_str(),
               message.c_str());
  return status;
}

// Throws InvalidArgument; what can be wrong must be found before the training, not after it.
std::vector<Run> plan_runs(const Arguments& arguments) {
  std::vector<Run> runs;
  std::vector<GradientChoice> choices;
  for (const std::string& gradients : arguments.gradients) {
    GradientChoice choice = parse_gradient_choice(gradients);
    refine(choice, arguments.gradient_options);
    choices.push_back(choice);
    runs.push_back({.number = static_cast<int>(runs.size()) + 1,
                    .gradients = gradients,
                    .choice = std::move(choice),
                    .state = {}});
  }
  check_effects(choices, arguments.gradient_options);
  return runs;
}

using program::Align;
using program::Table;

std::string fixed(double value, int digits) {
  char text[32];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

double wanted_sparsity(const Run& run) { return run.choice.gates ? run.choice.gates->sparsity : 0; }

double mean_step_seconds(const Run& run) {
  return run.state.step > 0 ? run.result().step_seconds / static_cast<double>(run.state.step) : 0;
}

// The outcome of the runs.
std::string table_of(const std::vector<Run>& runs) {
  Table table({{"gradients", Align::kLeft},
               {"test accuracy"},
               {"sparsity wanted"},
               {"achieved"},
               {"worst miss"},
               {"bits a value"},
               {"ms a step"},
               {"median"}});
  for (const Run& run : runs) {
    const GradientTotals& gradients = run.result().gradients;
    const bool pruned = wanted_sparsity(run) > 0;
    table.add({run.gradients,
               run.result().diverged ? "diverged" : program::percent(run.result().test_accuracy()),
               pruned ? fixed(wanted_sparsity(run), 4) : "-",
               run.choice.gates ? fixed(gradients.sparsity(), 4) : "-",
               pruned ? fixed(gradients.worst_miss(), 4) : "-",
               fixed(gradients.bits_per_value(), 2), fixed(1e3 * mean_step_seconds(run), 1),
               fixed(1e3 * run.result().median_step_seconds, 1)});
  }
  return table.text() +
         "\n"
         "Sparsity: the share of zeros in the gradients that were compressed, over the whole run;\n"
         "worst miss: the largest |achieved - wanted| of a layer in a step. Bits: mean over the\n"
         "gradients of the outputs of convolution and linear layers, with 32 for those too small\n"
         "to compress; with pruning, what an ideal entropy coder needs: the entropy of zero / at\n"
         "the threshold / survivor, a sign, and the survivors in full.\n";
}

int run(Arguments& arguments) {
  settle(arguments);
  std::vector<Run> runs = plan_runs(arguments);
  watch_for_interruption();
  if (!train_all(arguments, runs))
    return fail(kInterrupted,
                arguments.checkpoint.empty()
                    ? "interrupted; nothing was saved, because --checkpoint was not given"
                    : "interrupted; continue with the same command and --resume");
  std::printf("\n%s", program::with_bold_titles(table_of(runs), STDOUT_FILENO).c_str());
  std::fflush(stdout);
  for (const Run& run : runs) {
    if (run.result().diverged)
      return fail(kFailed, "training with gradients " + run.gradients +
                               " diverged: the loss is not finite after " +
                               std::to_string(run.state.step) + " steps");
    if (!(run.result().test_accuracy() >= *arguments.min_accuracy))
      return fail(kFailed, "training with gradients " + run.gradients +
                               " did not learn: accuracy " +
                               std::to_string(run.result().test_accuracy()) +
                               ", expected at least " + std::to_string(*arguments.min_accuracy));
  }
  return 0;
}

}  // namespace
}  // namespace slimgrad::trainer

int main(int argc, char** argv) {
  using namespace slimgrad::trainer;
  try {
    Arguments arguments;
    slimgrad::program::CommandLine line(
        "slimgrad-train", "Trains networks with and without compressed gradients, and compares.",
        "slimgrad-train " SLIMGRAD_VERSION);
    declare_arguments(line.flags(), arguments);
    std::string shell;
    line.flags()
        .option("--completion", shell, "Print a script that completes this command in a shell")
        .one_of(slimgrad::program::completion_shells());
    if (!line.parse(argc, argv)) return 0;
    if (shell.empty()) return run(arguments);
    std::fputs(slimgrad::program::completion_script(line.declared(), shell).c_str(), stdout);
    return 0;
  } catch (const slimgrad::program::UsageError& error) {
    return fail(kMisused, error.what());
  } catch (const slimgrad::InvalidArgument& error) {
    return fail(kMisused, error.what());
  } catch (const std::exception& error) {
    return fail(kFailed, error.what());
  }
}
