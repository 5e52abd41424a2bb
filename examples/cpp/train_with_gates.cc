// Compressed gradients in a libtorch program: a gate behind each layer whose output gradient is to
// be compressed, an activation that keeps three bits a value for backward, and nothing else
// changes. Trains a two-layer network on points of two rings:
//
//   train_with_gates [steps]
#include <slimgrad/nn.h>
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>

struct RingsImpl : torch::nn::Module {
  RingsImpl() {
    slimgrad::GateOptions options;
    options.settings.prune = slimgrad::PruneKind::kStochastic;
    options.settings.sparsity = 0.8;  // four in five gradient values become zero
    options.settings.bits = 6;        // and the others take six bits
    hidden = register_module("hidden", torch::nn::Linear(2, 64));
    gate = register_module("gate", slimgrad::nn::GradientGate(options));
    activation = register_module("activation", slimgrad::nn::GELU());  // 3 bits a value
    output = register_module("output", torch::nn::Linear(64, 2));
  }
  torch::Tensor forward(const torch::Tensor& points) {
    return output(activation(gate(hidden(points))));
  }

  torch::nn::Linear hidden{nullptr}, output{nullptr};
  slimgrad::nn::GradientGate gate{nullptr};
  slimgrad::nn::GELU activation{nullptr};
};
TORCH_MODULE(Rings);

int main(int argc, char** argv) {
  const int steps = argc > 1 ? std::atoi(argv[1]) : 300;
  torch::manual_seed(1);
  const torch::Tensor inside = torch::rand({1024}).lt(0.5);
  const torch::Tensor angle = torch::rand({1024}) * 6.2832;
  const torch::Tensor radius = torch::where(inside, 1.0, 2.0) + 0.1 * torch::randn({1024});
  const torch::Tensor points = torch::stack({radius * angle.cos(), radius * angle.sin()}, 1);
  const torch::Tensor labels = inside.to(torch::kLong);

  Rings network;
  torch::optim::Adam optimizer(network->parameters(), torch::optim::AdamOptions(1e-2));
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    torch::nn::functional::cross_entropy(network(points), labels).backward();
    optimizer.step();
  }
  const double accuracy =
      network(points).argmax(1).eq(labels).to(torch::kDouble).mean().item<double>();
  const slimgrad::GateReport report = network->gate->report();
  std::printf("accuracy %.3f, zeros %.3f (wanted %.3f), format %s, cosine %.3f\n", accuracy,
              report.sparsity, report.sparsity_wanted,
              report.quantizer ? report.quantizer->format.name().c_str() : "-", report.cosine);
}
