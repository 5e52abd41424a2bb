// What a comparison of runs found, as a table.
#ifndef SLIMGRAD_TRAINER_REPORT_H_
#define SLIMGRAD_TRAINER_REPORT_H_

#include <string>
#include <vector>

#include "trainer/run.h"

namespace slimgrad::trainer {

std::string table_of(const std::vector<Run>& runs);

}  // namespace slimgrad::trainer

#endif  // SLIMGRAD_TRAINER_REPORT_H_
