// What looks at all gates of a model at once, between two steps: a sparsity that is spread over
// layers, and the dynamic global loss scale (a baseline).
#ifndef SLIMGRAD_GATES_H_
#define SLIMGRAD_GATES_H_

#include <cstdint>
#include <span>
#include <string_view>

#include <slimgrad/allocation.h>
#include <slimgrad/gate.h>

namespace slimgrad {

// A gate, and what the last gradient through it looked like.
struct GateRecord {
  GateState* gate;
  GateReport report;
  TensorStats stats;

  // Past its warm-up, not too small, and measured. A product of a sparse layer that was done
  // densely last time is, too.
  bool counts() const;
};

// Both functions have seen all gates afterwards: has_news() is false until the next backward pass.

// Spreads the gates' target, which is the same in all, over those that count, for the next pass; so
// none before the first. What a gradient cannot be pruned to is approached: one that is sparser
// than wanted already is not a mistake of the user's. Targets name gates by their index; one that
// does not count yet waits. Throws InvalidArgument, in the name of `op`.
void allocate_sparsity(std::span<GateRecord> gates, AllocationObjective objective,
                       ThresholdMethod method, double cap, std::span<const CosineTarget> targets,
                       std::string_view op);

// Halves the loss scale, which is the inverse of the grid's, as soon as a gradient exceeds the
// grid; doubles it after growth_interval passes without.
void update_loss_scale(std::span<GateRecord> gates, std::int64_t growth_interval,
                       std::string_view op);

}  // namespace slimgrad

#endif  // SLIMGRAD_GATES_H_
