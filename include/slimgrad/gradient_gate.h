// The gate: the identity forward, whose backward compresses the gradient that passes through it.
// Put one behind a layer, and the layer's backward works on the compressed gradient of its output.
//
// All state is in two float64 tensors that the caller owns and may save: `plan` (settings,
// counters, the plan in force) and `stats` (what the last backward pass saw and did). The same
// state and input give the same result on any number of threads. Backward writes both tensors: do
// not run two backward passes through one gate at the same time. Double backward throws.
#ifndef SLIMGRAD_GRADIENT_GATE_H_
#define SLIMGRAD_GRADIENT_GATE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include <slimgrad/gradient_plan.h>

namespace slimgrad {

struct GateOptions {
  GradientSettings settings;
  std::uint64_t seed = 0;              // of this layer: layers need seeds of their own
  std::int64_t min_elements = 4096;    // smaller gradients are left alone
  std::int64_t sample_size = 1 << 16;  // how many values are measured
  std::int64_t refresh_every = 1;      // plan anew every so many backward passes
  std::int64_t warmup = 0;             // so many backward passes are only measured
};

at::Tensor new_gate_plan(const GateOptions& options);
at::Tensor new_gate_stats();

// `stream` is mixed into the seed: ranks of a distributed job draw their own random numbers.
at::Tensor gradient_gate(const at::Tensor& x, const at::Tensor& plan, const at::Tensor& stats,
                         std::int64_t stream = 0);

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
GateReport gate_report(const at::Tensor& plan, const at::Tensor& stats);

}  // namespace slimgrad

#endif  // SLIMGRAD_GRADIENT_GATE_H_
