// The gate: what a layer's gradient goes through in every backward pass. A sample is measured, a
// treatment is chosen or an older one made safe, the gradient is treated, and a report says what
// was seen and done. This header is for arrays; gradient_gate.h has the gate for tensors, as a node
// of autograd.
//
// In the order of the header: what a user wants for a layer (GradientSettings) and the decision
// that follows from it (choose_treatment(), guard_treatment()); the gate, its state and its report;
// what looks at all gates of a model at once, between two steps: a sparsity that is spread over
// layers (allocate_sparsity()), and the dynamic global loss scale, a baseline
// (update_loss_scale()).
//
// Everything that a gate remembers is in a GateState, plain data: the same state, gradient and
// stream give the same result on any number of threads, and a saved state continues bit for bit.
// One thread at a time may use a gate. Functions without a GateState are pure, and any thread may
// call them.
//
// Surprises. Small gradients (min_elements) and those of the warm-up pass unchanged. An allocation
// or a dynamic loss scale writes the gate's settings; GateState keeps what the user asked for.
#ifndef SLIMGRAD_GATE_H_
#define SLIMGRAD_GATE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <slimgrad/float_format.h>
#include <slimgrad/format_choice.h>
#include <slimgrad/half.h>
#include <slimgrad/tensor_stats.h>
#include <slimgrad/threshold.h>
#include <slimgrad/treatment.h>

namespace slimgrad {

std::string_view prune_kind_name(
    PruneKind kind);  // "none", "stochastic", "topk", "topk_stochastic"
PruneKind parse_prune_kind(std::string_view name);

// What the user wants for one layer.
struct GradientSettings {
  PruneKind prune = PruneKind::kNone;
  double sparsity = 0;
  ThresholdMethod method = ThresholdMethod::kEmpirical;

  int bits = 0;                       // 0: do not quantize
  std::optional<FloatFormat> format;  // none: see choose_treatment()
  SplitMethod split = SplitMethod::kEmpirical;
  ScaleMethod scale_method = ScaleMethod::kMax;
  double fixed_scale = 0;  // positive: used instead of scale_method (global loss scaling)
  // Unbiased; rounding to nearest and flushing to zero are cheaper, and harm layers with a great
  // many small values that matter together, such as the softmax of a vocabulary.
  Rounding rounding = Rounding::kStochastic;
  Underflow underflow = Underflow::kStochastic;
};

// What to do with the gradient at hand. REQUIRES: stats.num_finite() > 0. A tensor with nothing to
// prune is not pruned, and one without a non-zero value is not quantized.
//
// The format, unless given, is the best one by settings.split; for a pruned gradient, the one with
// the finest steps that covers what is left. There most values lie at +-threshold, so the scale is
// raised, by less than one step of the grid, until the threshold is itself a grid value: rounding
// to nearest would otherwise shift the bulk of the tensor. Where the grid does not reach down to
// the threshold, underflow is stochastic whatever the settings say.
Treatment choose_treatment(const TensorStats& stats, const GradientSettings& settings);

// A treatment that was chosen for an older gradient, made safe for this one. Never prunes above
// mean|x| / (1 - sparsity): the noise of pruning, E[|x| (alpha - |x|)^+], grows with alpha without
// bound; a stale threshold far above a shrunken tensor would drown it. A scale that its method
// found stays between the one it would find today, below which values are clipped, and four times
// that, above which ever more of the tensor drowns in the noise of underflow in the same way.
Treatment guard_treatment(const Treatment& old, const TensorStats& stats,
                          const GradientSettings& settings);

// How many values of a gradient are measured: enough for a threshold within 0.003 of the sparsity.
inline constexpr std::int64_t kSampleSize = 1 << 16;

struct SparsityAt {
  std::int64_t call;  // backward passes through the gate before
  double sparsity;
};
inline constexpr std::size_t kMostSchedulePoints = 8;

struct GateOptions {
  GradientSettings settings = {};
  // The seed of this gate alone: derive_seed(seed, {name}) for each gate of a model. Gates of
  // tensors take one from torch's generator if none is set; for arrays it has to be set.
  std::optional<std::uint64_t> seed = {};
  std::int64_t min_elements = 4096;  // smaller gradients are left alone
  std::int64_t sample_size = kSampleSize;
  std::int64_t refresh_every = 1;  // backward passes between two choices; 0: when `due`
  std::int64_t warmup = 0;         // backward passes that only measure, at the start
  // Sparsity by backward pass, ascending, linear in between; constant before the first point and
  // after the last. Empty: settings.sparsity.
  std::vector<SparsityAt> schedule = {};
  // What looks at all layers at once and writes this gate's sparsity or fixed scale. The gate
  // itself does not use these two; a saved state tells by them where its numbers come from.
  AllocationObjective allocation = AllocationObjective::kUniform;
  bool dynamic_scale = false;  // fixed_scale is where a dynamic loss scale begins
};

// Draws are numbered by calls, and states hold counters as float64: above 2^53 adding one changes
// nothing. A state with more calls than this, which no run reaches, is refused.
inline constexpr std::int64_t kMostCalls = std::int64_t{1} << 48;

struct GateState {
  GateOptions options;     // settings.sparsity and fixed_scale change with what looks at all layers
  std::int64_t calls = 0;  // backward passes so far; also numbers the random draws
  bool due = true;         // choose anew in the next one
  Treatment in_force;      // as chosen; an older one is guarded before it is applied
  double target = 0;       // settings.sparsity as it was asked for; an allocation spreads it
  double asked_scale = 0;  // settings.fixed_scale as it was asked for
  std::int64_t good_steps = 0;  // of a dynamic loss scale, since its last change
  std::int64_t seen_calls = 0;  // `calls` when all gates were last looked at
};

// Whether there was a backward pass since all gates were last looked at.
inline bool has_news(const GateState& gate) { return gate.calls != gate.seen_calls; }

// Throws InvalidArgument, in the name of `op`, for options out of their range, and for some that
// would have no effect: a sparsity without a kind of pruning, a rounding without bits.
GateState new_gate(const GateOptions& options, std::string_view op = "new_gate");
// Throws InvalidArgument, in the name of `op`, for a state that no gate can have come to.
void check_gate_state(const GateState& gate, std::string_view op);
// Sets another sparsity, instead of the one that was set, scheduled or allocated. Throws
// InvalidArgument, also for a gate that does not prune.
void set_sparsity(GateState& gate, double sparsity);

// Continues where `saved` was: takes over its seed, counters and draws, the sparsity and the fixed
// scale wanted now, and the treatment in force. Settings stay this gate's; those that differ are
// returned in words, such as "sparsity 0.5, the state has 0.9", and hold from the next pass on:
// what followed from saved's settings (the sparsity now, a dynamic loss scale) starts again from
// this gate's, and the treatment is chosen again. With equal settings the gate continues bit for
// bit. Throws InvalidArgument for a state that no gate can have, and then nothing has changed.
std::vector<std::string> resume_gate(GateState& gate, const GateState& saved);

// What the last backward pass through a gate saw and did.
struct GateReport {
  std::int64_t calls = 0;
  std::int64_t elements = 0, nonfinite = 0;
  bool compressed = false;  // false: too small, in warm-up, or without a finite value
  bool saturated = false;   // a value exceeded the grid's top
  double log_std = 0;       // of the sample
  double sparsity_wanted = 0, sparsity = 0, at_threshold = 0;
  double cosine = 1, relative_error = 0;  // of gradient and compressed gradient, on the sample
  double bias = 0;                        // of the sum over the sample, over the sum of magnitudes
  double threshold = 0;
  std::optional<Quantizer> quantizer;
};

// Bits per value of the gradient, stored as the gate left it: 32 if it was left alone; without
// pruning a code of the format; with pruning what an ideal entropy coder needs to tell zeros,
// values at the threshold and survivors apart, a sign for those at it, and the survivors in full.
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

// A gate, and what the last gradient through it looked like.
struct GateRecord {
  GateState* gate;
  GateReport report;
  TensorStats stats;

  // Past its warm-up, not too small, and measured; also for a product of a sparse layer that was
  // done densely last time.
  bool counts() const;
};

// After either of the next two functions has_news() is false until the next backward pass.

// Spreads the gates' target, which is the same in all, over those that count, for the next pass:
// before the first backward pass it does nothing. A sparsity that is out of reach is replaced by
// the nearest one, because a gradient that is already sparser is no mistake of the user. Targets
// name gates by their index; a target of a gate that does not count yet is not used. Throws
// InvalidArgument, in the name of `op`.
void allocate_sparsity(std::span<GateRecord> gates, AllocationObjective objective,
                       ThresholdMethod method, double cap, std::span<const CosineTarget> targets,
                       std::string_view op);

// Halves the loss scale, which is the inverse of the grid's, as soon as a gradient exceeds the
// grid; doubles it after growth_interval passes without.
void update_loss_scale(std::span<GateRecord> gates, std::int64_t growth_interval,
                       std::string_view op);

}  // namespace slimgrad

#endif  // SLIMGRAD_GATE_H_
