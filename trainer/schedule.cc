#include "trainer/schedule.h"

#include <cmath>
#include <numbers>

#include "base/check.h"

namespace slimgrad::trainer {

double rate_share(std::string_view schedule, std::int64_t step, std::int64_t num_steps) {
  // The middle of the step.
  const double done = (static_cast<double>(step) + 0.5) / static_cast<double>(num_steps);
  if (schedule == "onecycle") {
    constexpr double kPeak = 0.2;
    return done < kPeak ? done / kPeak : (1 - done) / (1 - kPeak);
  }
  if (schedule == "cosine") return (1 + std::cos(std::numbers::pi * done)) / 2;
  if (schedule == "step") return done < 0.5 ? 1 : done < 0.75 ? 0.1 : 0.01;
  check(schedule == "constant", "schedule", "onecycle, cosine, step or constant", schedule);
  return 1;
}

}  // namespace slimgrad::trainer
