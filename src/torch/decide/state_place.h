// Where the state of a gate is: beside its gradients on a device that plans by itself, so that
// nothing waits for it, else on the CPU.
#ifndef SLIMGRAD_TORCH_DECIDE_STATE_PLACE_H_
#define SLIMGRAD_TORCH_DECIDE_STATE_PLACE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include <slimgrad/gate.h>

namespace slimgrad::torch_ops {

// Whether kernels of a device can plan for the gate, and it has anything to plan. The thresholds
// "gennorm" and "normal", the split "normal" and the scale "predicted" are found on the host: their
// gates keep the state there, and a pass waits for the device.
bool plans_on_device(const GateState& gate);

// Moves the state of a gate to where gradients like x want it. Everybody who holds its tensors sees
// the move: they stay the same tensors. Reads the plan, if it is on the CPU, and so refuses a bad
// one; waits, if it comes from a device. Does nothing for tensors that stand for others (fake
// ones).
void bring_state(const at::Tensor& x, const at::Tensor& plan, const at::Tensor& stats,
                 std::string_view op);
// The same for x on a device.
void bring_state_to(c10::Device device, const at::Tensor& plan, const at::Tensor& stats,
                    std::string_view op);

// Whether a state is on a device with kernels, where the host does not look at it in passing.
bool is_on_device(const at::Tensor& state);

// A state as the host can read it: itself, or a copy, for which this waits.
at::Tensor on_host(const at::Tensor& state);

// Many of them, by one copy for each device. All have one dimension and the same type.
class HostCopies {
 public:
  explicit HostCopies(std::vector<at::Tensor> tensors);

  const std::vector<at::Tensor>& here() const { return here_; }
  // Writes the first `count` back, where they are not the tensors themselves; nothing waits.
  void write_back(std::size_t count) const;

 private:
  std::vector<at::Tensor> tensors_, here_;
};

// How many passes devices were given: as long as it stays, no gate on a device has news.
std::uint64_t num_device_passes();

// One gradient through the gate, on the device that has all five; `out` may be `in`. Nothing waits.
// REQUIRES: no gaps in `in` and `out`.
void pass_on_device(const at::Tensor& in, const at::Tensor& out, const at::Tensor& plan,
                    const at::Tensor& stats, std::int64_t stream);

}  // namespace slimgrad::torch_ops

#endif  // SLIMGRAD_TORCH_DECIDE_STATE_PLACE_H_
