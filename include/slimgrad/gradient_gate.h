// The gate: the identity forward, whose backward compresses the gradient that passes through it.
// Put one behind a layer, and the layer's backward works on the compressed gradient of its output.
//
// All state is in two float64 tensors that the caller owns and may save: `plan` (settings,
// counters, the plan in force) and `stats` (what the last backward pass saw and did). The same
// state and input give the same result on any number of threads and on any device. Backward writes
// both tensors.
//
// On a device with kernels of slimgrad the gate moves both tensors there, and no pass waits for the
// device: they stay the same tensors, with their memory elsewhere. Reading them waits, as
// gate_report() does. The thresholds "gennorm" and "normal", the split "normal" and the scale
// "predicted" are found on the host alone: with these the tensors stay on the CPU, and every pass
// waits. Where a format's smallest value does not fit the type of the gradient at a loss scale, the
// CPU throws and a device leaves the gradient as it is.
//
// Two threads may run backward through one gate: each pass is counted and draws by itself, in the
// order in which they happen to begin. Double backward throws.
#ifndef SLIMGRAD_GRADIENT_GATE_H_
#define SLIMGRAD_GRADIENT_GATE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <slimgrad/gate.h>

namespace slimgrad {

// Without a seed it takes one from torch's generator, so that torch::manual_seed() reproduces a
// run. Throws InvalidArgument, in the name of `op`, for options that new_gate() refuses, and for
// numbers that a float64 does not hold.
at::Tensor new_gate_plan(GateOptions options, std::string_view op = "new_gate_plan");
at::Tensor new_gate_stats();

// `stream` is mixed into the seed: ranks of a distributed job draw their own random numbers. Throws
// InvalidArgument for an x of another type and for tensors that are no state of a gate.
at::Tensor gradient_gate(const at::Tensor& x, const at::Tensor& plan, const at::Tensor& stats,
                         std::int64_t stream = 0);

// Continues where a saved gate was: resume_gate() of gate.h for tensors, with the statistics. The
// saved ones may be on any device. Throws InvalidArgument for tensors that no gate wrote, and then
// nothing has changed.
std::vector<std::string> load_gate(const at::Tensor& plan, const at::Tensor& stats,
                                   const at::Tensor& saved_plan, const at::Tensor& saved_stats);

// What the last backward pass through a gate saw and did.
GateReport gate_report(const at::Tensor& plan, const at::Tensor& stats);

}  // namespace slimgrad

#endif  // SLIMGRAD_GRADIENT_GATE_H_
