// The gate: what a layer's gradient goes through in every backward pass. A sample is measured, a
// treatment is chosen or an older one made safe, the gradient is treated, and a report says what
// was seen and done. For arrays; gradient_gate.h has it for tensors, as a node of autograd.
//
// All that a gate remembers is a GateState, plain data: the same state, gradient and stream give
// the same result on any number of threads, and a state that was saved goes on to the bit. One
// gradient at a time goes through a gate.
#ifndef SLIMGRAD_GATE_H_
#define SLIMGRAD_GATE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <slimgrad/allocation.h>
#include <slimgrad/half.h>
#include <slimgrad/tensor_stats.h>
#include <slimgrad/treatment_choice.h>

namespace slimgrad {

// How many values of a gradient are measured: enough for a threshold within 0.003 of the sparsity.
inline constexpr std::int64_t kSampleSize = 1 << 16;

struct SparsityAt {
  std::int64_t call;  // backward passes through the gate before
  double sparsity;
};
inline constexpr std::size_t kMostSchedulePoints = 8;

struct GateOptions {
  GradientSettings settings = {};
  // Of this gate alone: derive_seed(seed, {name}) for each gate of a model. Gates of tensors take
  // one from torch's generator if none is set; for arrays it has to be set.
  std::optional<std::uint64_t> seed = {};
  std::int64_t min_elements = 4096;  // smaller gradients are left alone
  std::int64_t sample_size = kSampleSize;
  std::int64_t refresh_every = 1;  // choose anew every so many backward passes; 0: when `due`
  std::int64_t warmup = 0;         // so many backward passes are only measured
  // Sparsity by backward pass, ascending, linear in between; the first holds before it, the last
  // for ever. None: settings.sparsity.
  std::vector<SparsityAt> schedule = {};
  // What looks at all layers at once (gates.h) and writes this gate's sparsity or fixed scale. The
  // gate does nothing with it; a state that comes from another tells by it whose numbers it has.
  AllocationObjective allocation = AllocationObjective::kUniform;
  bool dynamic_scale = false;  // fixed_scale is where a dynamic loss scale begins
};

// Throws InvalidArgument, in the name of `op`, for numbers out of their range.
void check_gate_options(const GateOptions& options, std::string_view op);

// Draws are numbered by calls, and states hold counters as float64: above 2^53 adding one changes
// nothing. A state with more than this, which no run comes to, is refused.
inline constexpr std::int64_t kMostCalls = std::int64_t{1} << 48;

struct GateState {
  GateOptions options;     // settings.sparsity and fixed_scale change with what looks at all layers
  std::int64_t calls = 0;  // backward passes so far; also numbers the random draws
  bool due = true;         // choose anew in the next one
  Treatment in_force;      // as chosen; an older one is guarded before it is applied
  double target = 0;       // settings.sparsity as it was asked for; an allocation spreads it
  double asked_scale = 0;  // settings.fixed_scale as it was asked for
  std::int64_t good_steps = 0;  // of a dynamic loss scale, since its last change
  std::int64_t seen_calls = 0;  // `calls` when all gates were last looked at (gates.h)
};

// Whether there was a backward pass since all gates were last looked at.
inline bool has_news(const GateState& gate) { return gate.calls != gate.seen_calls; }

// Throws InvalidArgument, in the name of `op`, for options out of their range, and for some that
// would have no effect: a sparsity without a kind of pruning, a rounding without bits.
GateState new_gate(const GateOptions& options, std::string_view op = "new_gate");
// Throws InvalidArgument, in the name of `op`, for a state that no gate can have come to.
void check_gate_state(const GateState& gate, std::string_view op);
// Another sparsity from now on, instead of the one that was set, scheduled or allocated. Throws
// InvalidArgument, also for a gate that does not prune.
void set_sparsity(GateState& gate, double sparsity);

// Goes on where `saved` was: seed, counters and draws, the sparsity and the fixed scale wanted now
// and the treatment in force are its. Settings stay this gate's; those that differ are returned in
// words, such as "sparsity 0.5, the state has 0.9", and hold from the next pass on: what followed
// from saved's (the sparsity now, a dynamic loss scale) begins anew from ours, and the treatment is
// chosen anew. With equal settings the gate goes on to the bit. Throws InvalidArgument for a state
// that is none, and then nothing has changed.
std::vector<std::string> resume_gate(GateState& gate, const GateState& saved);

// What the last backward pass through a gate saw and did.
struct GateReport {
  std::int64_t calls = 0;
  std::int64_t elements = 0, nonfinite = 0;
  bool compressed = false;  // false: too small, warming up, or nothing finite in it
  bool saturated = false;   // a value exceeded the grid's top
  double log_std = 0;       // of the sample
  double sparsity_wanted = 0, sparsity = 0, at_threshold = 0;
  double cosine = 1, relative_error = 0;  // of gradient and compressed gradient, on the sample
  double bias = 0;                        // of the sum over the sample, over the sum of magnitudes
  double threshold = 0;
  std::optional<Quantizer> quantizer;
};

// What a value of the gradient would take if it were stored as the gate left it: 32 bits if it was
// left alone; without pruning a code of the format; with it what an ideal entropy coder needs for
// zero, at the threshold or survivor, a sign for those at it, and the survivors in full.
double bits_per_value(const GateReport& report);

struct GatePassage {
  GateReport report;
  TensorStats stats;  // of the sample, with the counts of the whole gradient
};

// One gradient through the gate; `out` is `in` itself or does not overlap it. `stream` is mixed
// into the seed: ranks of a distributed job draw their own random numbers.
GatePassage pass_gate(GateState& gate, std::span<const float> in, std::span<float> out,
                      std::int64_t stream = 0);
GatePassage pass_gate(GateState& gate, std::span<const BFloat16Bits> in,
                      std::span<BFloat16Bits> out, std::int64_t stream = 0);
GatePassage pass_gate(GateState& gate, std::span<const Float16Bits> in, std::span<Float16Bits> out,
                      std::int64_t stream = 0);

}  // namespace slimgrad

#endif  // SLIMGRAD_GATE_H_
