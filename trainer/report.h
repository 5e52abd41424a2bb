// What a comparison of runs found, as a table and as JSON.
#ifndef SLIMGRAD_TRAINER_REPORT_H_
#define SLIMGRAD_TRAINER_REPORT_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trainer/gradient_choice.h"
#include "trainer/training.h"

namespace slimgrad::trainer {

struct Run {
  std::string gradients;  // as the user wrote it
  GradientChoice choice;
  RunResult result;
};

std::string table_of(const std::vector<Run>& runs);
nlohmann::ordered_json json_of(const std::vector<Run>& runs);

}  // namespace slimgrad::trainer

#endif  // SLIMGRAD_TRAINER_REPORT_H_
