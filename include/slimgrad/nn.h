// slimgrad's modules for libtorch programs.
#ifndef SLIMGRAD_NN_H_
#define SLIMGRAD_NN_H_

#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <slimgrad/gradient_gate.h>
#include <slimgrad/nn_activations.h>
#include <slimgrad/nn_layers.h>
#include <slimgrad/nn_state.h>

namespace slimgrad::nn {

// gradient_gate() with its state, which nn_state.h saves; torch::save leaves it out. Without a seed
// in its options a gate takes one from torch's generator. In a distributed job `stream` is the
// rank.
class GradientGateImpl : public torch::nn::Cloneable<GradientGateImpl>, public StateOwner {
 public:
  explicit GradientGateImpl(const GateOptions& options, std::int64_t stream = 0)
      : plan(new_gate_plan(options, "GradientGate")), stats(new_gate_stats()), stream(stream) {}

  void reset() override { plan = plan.clone(), stats = stats.clone(); }
  bool is_serializable() const override { return false; }
  Tensors state_tensors() const override { return {{{"", plan, stats}}, {}}; }

  at::Tensor forward(const at::Tensor& x) {
    const bool has_gradient = at::GradMode::is_enabled() && x.requires_grad();
    return has_gradient ? gradient_gate(x, plan, stats, stream) : x;
  }
  GateReport report() const { return gate_report(plan, stats); }

  at::Tensor plan, stats;
  std::int64_t stream;
};
TORCH_MODULE(GradientGate);

}  // namespace slimgrad::nn

#endif  // SLIMGRAD_NN_H_
