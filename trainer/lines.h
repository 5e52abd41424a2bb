// The lines of --out, as JSON. docs/runs.md has the fields.
#ifndef SLIMGRAD_TRAINER_LINES_H_
#define SLIMGRAD_TRAINER_LINES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/arguments.h"
#include "trainer/gradient_probe.h"
#include "trainer/run.h"

namespace slimgrad::trainer {

// What the arguments alone do not say.
struct RunFacts {
  std::string data;  // its name, without a path
  std::uint64_t data_hash = 0;
  bool is_text = false;
  std::int64_t training_samples = 0, test_samples = 0, parameters = 0;
};

std::string config_line(const Arguments& arguments, const Run& run, const RunFacts& facts);
std::string epoch_line(const Run& run, const Arguments& arguments, const EpochResult& epoch);
std::vector<std::string> layer_lines(const Run& run, const EpochResult& epoch);
std::vector<std::string> look_lines(const Run& run, const Arguments& arguments,
                                    const GradientLook& look);
std::string end_line(const Run& run, std::uint64_t peak_memory);

// Empty if two configurations, which are lines of above, are of runs that give the same; else what
// differs: "batch 64, got 32". Program and commit may differ.
std::string difference(const std::string& saved, const std::string& wanted);

}  // namespace slimgrad::trainer

#endif  // SLIMGRAD_TRAINER_LINES_H_
