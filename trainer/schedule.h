// The learning rate's share of its peak, by step.
#ifndef SLIMGRAD_TRAINER_SCHEDULE_H_
#define SLIMGRAD_TRAINER_SCHEDULE_H_

#include <cstdint>
#include <string_view>

namespace slimgrad::trainer {

// "onecycle": up in a straight line for the first fifth of the run, down to zero in a straight line
// after it. "cosine": half a wave from the peak to zero. "step": a tenth of it from the middle of
// the run on, a hundredth in the last quarter. "constant". Throws InvalidArgument for other names.
double rate_share(std::string_view schedule, std::int64_t step, std::int64_t num_steps);

}  // namespace slimgrad::trainer

#endif  // SLIMGRAD_TRAINER_SCHEDULE_H_
