// slimgrad's modules for libtorch programs.
#ifndef SLIMGRAD_NN_H_
#define SLIMGRAD_NN_H_

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <slimgrad/gradient_gate.h>
#include <slimgrad/nn_activations.h>
#include <slimgrad/nn_layers.h>

namespace slimgrad::nn {

// gradient_gate() with its state in buffers, so that torch::save keeps it.
class GradientGateImpl : public torch::nn::Module {
 public:
  explicit GradientGateImpl(const GateOptions& options)
      : plan(register_buffer("plan", new_gate_plan(options))),
        stats(register_buffer("stats", new_gate_stats())) {}

  at::Tensor forward(const at::Tensor& x) {
    return at::GradMode::is_enabled() && x.requires_grad() ? gradient_gate(x, plan, stats) : x;
  }
  GateReport report() const { return gate_report(plan, stats); }

  at::Tensor plan, stats;
};
TORCH_MODULE(GradientGate);

}  // namespace slimgrad::nn

#endif  // SLIMGRAD_NN_H_
