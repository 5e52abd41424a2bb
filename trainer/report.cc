#include "trainer/report.h"

#include <cstdio>

#include "program/table.h"

namespace slimgrad::trainer {
namespace {

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

}  // namespace

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
         "worst miss: the largest |achieved - wanted| of a layer in a step. Bits: of all "
         "gradients\n"
         "behind a convolution or linear layer, counting 32 for those too small to compress; with\n"
         "pruning, what an ideal entropy coder needs: the entropy of zero / at the threshold /\n"
         "survivor, a sign, and the survivors in full.\n";
}

}  // namespace slimgrad::trainer
