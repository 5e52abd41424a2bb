// One backward pass through a gate, for callers that supply the gradient: an array, a tensor on
// some device, or the product of a layer that multiplies what is left.
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

// The elements of a gradient, wherever they are.
class GradientValues {
 public:
  virtual ~GradientValues() = default;
  // The values at every `every`-th position of the sample, counted in the order of memory.
  virtual void gather(const kernels::StratifiedSample& sample, std::uint64_t every,
                      std::vector<float>& out) = 0;
};

// A gradient that is written as the gate leaves it.
class TreatedGradient : public GradientValues {
 public:
  virtual double max_abs() = 0;  // the largest finite magnitude; 0 if there is none
  // Afterwards gather() gives treated values.
  virtual ApplyCounts apply(const Treatment& treatment) = 0;
  virtual void leave() = 0;  // as it is
};

class GatePass {
 public:
  // `num_values` of the gradient, whose elements are of `type`.
  GatePass(GateState& gate, std::uint64_t num_values, DType type, std::int64_t stream);

  // Measures, decides, treats and compares.
  void run(TreatedGradient& gradient);

  // The same for a product that is computed with the gradient and does not write it: whether it may
  // be sparse, decided from the sparsity that is wanted or that there is, what is to be pruned, and
  // how much was left.

  // Whether the gradient is neither too small nor in the warm-up, which the caller may ignore.
  bool is_open(bool in_warmup_too = false) const;
  // The sparsity that is wanted now; 0 if nothing is to be pruned.
  double sparsity() const;
  // The fraction of zeros in a small sample: how sparse a gradient is that is used as it is.
  double zero_fraction(GradientValues& gradient);
  // Nothing if no value of the sample is finite. The report has expectations over the draw.
  Treatment prune(GradientValues& gradient);
  void multiplied(std::uint64_t num_survivors);

  // The state is one call on.
  void close();
  // Afterwards.
  const GateReport& report() const { return report_; }
  // Null if the gradient was not looked at.
  const TensorStats* stats() const { return has_seen_ ? &stats_ : nullptr; }

 private:
  const GateOptions& options() const { return gate_.options; }
  kernels::StratifiedSample sample(std::int64_t size) const;
  // Measures a sample, and returns whether any value is finite: else there is nothing to decide.
  bool see(GradientValues& gradient, const kernels::StratifiedSample& sample);
  Treatment decide();
  void treated(const ApplyCounts& counts);
  // `after` has every `every`-th of the values that see() got, treated.
  void compare(std::uint64_t every, std::span<const float> after);

  GateState& gate_;
  std::uint64_t num_values_;
  DType type_;
  std::uint64_t draw_;  // seeds what this pass draws
  bool has_seen_ = false;
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
