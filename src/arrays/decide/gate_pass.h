// One backward pass through a gate, step by step, for callers that supply the gradient: an array, a
// tensor on some device, or the product of a layer that multiplies what is left.
//
//   sample()    which elements to look at
//   see()       their values
//   decide()    what to do with the gradient
//   treated()   what that did, or multiplied()
//   compare()   what the sample looks like now, or expect()
//   close()     the report; the state is one call on
//
// Cost: a gather of up to kSampleSize values and a fit to them, about 0.15 ms.
#ifndef SLIMGRAD_ARRAYS_DECIDE_GATE_PASS_H_
#define SLIMGRAD_ARRAYS_DECIDE_GATE_PASS_H_

#include <cstdint>
#include <span>
#include <vector>

#include <slimgrad/gate.h>
#include <slimgrad/treatment.h>

#include "arrays/apply/loop_treatment.h"
#include "kernels/measure/stratified_sample.h"

namespace slimgrad {

class GatePass {
 public:
  // `num_values` of the gradient, whose elements are of `type`.
  GatePass(GateState& gate, std::uint64_t num_values, DType type, std::int64_t stream);

  // Whether the gradient is neither too small nor in the warm-up, which the caller may ignore.
  bool is_open(bool in_warmup_too = false) const;
  // The sparsity that is wanted now; 0 if nothing is to be pruned.
  double sparsity() const;
  // Seeds what this pass draws.
  std::uint64_t draw() const { return draw_; }

  kernels::StratifiedSample sample() const { return sample(options().sample_size); }
  kernels::StratifiedSample sample(std::int64_t size) const;
  // The values of a sample. Returns whether any is finite: else there is nothing to decide.
  bool see(std::span<const float> values);
  const TensorStats& stats() const { return stats_; }

  // A quantizer wants the gradient's own maximum: the largest values are rare, a sample misses
  // them, and saturation would clip exactly what matters most.
  bool wants_max_abs() const { return options().settings.bits > 0; }
  void set_max_abs(double max_abs) { stats_.max_abs = max_abs; }

  // REQUIRES: is_open(), and see() was true.
  Treatment decide();

  void treated(const ApplyCounts& counts);
  void multiplied(std::uint64_t num_survivors);
  // `after` has every `every`-th of the values that see() got, treated.
  void compare(std::span<const float> before, std::uint64_t every, std::span<const float> after);
  // The same where the treated gradient is not written: expectations over the draw.
  void expect();
  // compare() wants about this number of values; more add little precision.
  static constexpr std::uint64_t kCompared = 4096;

  GateReport close();

 private:
  const GateOptions& options() const { return gate_.options; }

  GateState& gate_;
  std::uint64_t num_values_;
  DType type_;
  std::uint64_t draw_;
  TensorStats stats_;
  Treatment treatment_;
  GateReport report_;
};

// Linear between the points of the schedule; `otherwise` if there is none.
double scheduled_sparsity(const std::vector<SparsityAt>& schedule, std::int64_t call,
                          double otherwise);

// The statistics of a sample, the same on every CPU, with the counts of the whole array, by
// which layers are weighted.
TensorStats measure_sample(std::span<const float> values, std::uint64_t num_values);

}  // namespace slimgrad

#endif  // SLIMGRAD_ARRAYS_DECIDE_GATE_PASS_H_
