// Everything that slimgrad makes small in a libtorch program, in one network: neural gradients
// (compress.h), the inputs of activations and a sparse backward pass (nn.h), and all else that
// autograd saves (saved_tensors.h). Trains it on points of two rings, and continues from a
// checkpoint to the bit:
//
//   train_compressed STEPS [CHECKPOINT]
//
// up to so many steps in all, from CHECKPOINT if that file exists, and writes it.
#include <slimgrad/compress.h>
#include <slimgrad/nn.h>
#include <slimgrad/saved_tensors.h>
#include <torch/torch.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>

// Modules of torch, but for those whose own backward pass is another one.
struct RingsImpl : torch::nn::Module {
  RingsImpl() {
    slimgrad::nn::SparseOptions sparse;  // prunes the gradient for the weight's product to 0.9
    sparse.always = true;                // also here, where a dense product is faster
    sparse.gate.seed = 2;
    register_module("first", first);
    register_module("activation", activation);
    middle =
        register_module("middle", slimgrad::nn::Linear(torch::nn::LinearOptions(64, 64), sparse));
    register_module("last", last);
  }
  torch::Tensor forward(const torch::Tensor& points) {
    return last(activation(middle(activation(first(points)))));
  }

  torch::nn::Linear first{2, 64}, last{64, 2};
  slimgrad::nn::Linear middle{nullptr};
  slimgrad::nn::GELU activation;  // saves 3 bits a value
};
TORCH_MODULE(Rings);

// A run and all of its state. A module's archive is that of the plain network: what slimgrad
// remembers, seeds, counters and plans, is saved beside it.
struct Run {
  static slimgrad::Compression compressed(Rings& network) {
    slimgrad::CompressOptions options;
    options.gate.settings.prune = slimgrad::PruneKind::kStochastic;
    options.gate.settings.sparsity = 0.8;  // four in five gradient values become zero
    options.gate.settings.bits = 6;        // and the others take six bits
    options.gate.min_elements = 1024;
    options.gate.seed = 1;
    return slimgrad::compress(*network, options);
  }

  double step_on(const torch::Tensor& points, const torch::Tensor& labels) {
    optimizer.zero_grad();
    torch::Tensor loss;
    {
      const slimgrad::SavedTensorsGuard guard(saved);
      loss = torch::nn::functional::cross_entropy(network(points), labels);
    }
    compression.backward(loss);  // instead of loss.backward()
    optimizer.step();
    ++step;
    return loss.item<double>();
  }

  void save(const std::string& path) const {
    torch::serialize::OutputArchive archive, weights, moments;
    network->save(weights);
    optimizer.save(moments);
    archive.write("network", weights);
    archive.write("optimizer", moments);
    archive.write("compression", slimgrad::nn::to_dict(compression.state()));
    archive.write("modules", slimgrad::nn::to_dict(slimgrad::nn::state_dict(*network)));
    archive.write("saved", c10::IValue(saved.state()));
    archive.write("step", step);
    archive.save_to(path);
  }

  void load(const std::string& path) {
    torch::serialize::InputArchive archive, weights, moments;
    archive.load_from(path);
    archive.read("network", weights);
    archive.read("optimizer", moments);
    network->load(weights);
    optimizer.load(moments);
    const auto value = [&](const char* key) {
      c10::IValue value;
      archive.read(key, value);
      return value;
    };
    for (const std::string& words :
         compression.load_state(slimgrad::nn::to_state(value("compression"))))
      std::cerr << "slimgrad: " << words << '\n';
    for (const std::string& words :
         slimgrad::nn::load_state_dict(*network, slimgrad::nn::to_state(value("modules"))))
      std::cerr << "slimgrad: " << words << '\n';
    saved.load_state(value("saved").toTensor());
    step = value("step").toInt();
  }

  Rings network;
  torch::optim::Adam optimizer{network->parameters(), torch::optim::AdamOptions(1e-2)};
  slimgrad::Compression compression = compressed(network);
  slimgrad::SavedTensors saved{{.bits = 4}, /*seed=*/3};
  std::int64_t step = 0;
};

int main(int argc, char** argv) {
  const int steps = argc > 1 ? std::atoi(argv[1]) : 300;
  const std::string checkpoint = argc > 2 ? argv[2] : "";
  torch::manual_seed(1);
  const torch::Tensor inside = torch::rand({1024}).lt(0.5);
  const torch::Tensor angle = torch::rand({1024}) * 6.2832;
  const torch::Tensor radius = torch::where(inside, 1.0, 2.0) + 0.1 * torch::randn({1024});
  const torch::Tensor points = torch::stack({radius * angle.cos(), radius * angle.sin()}, 1);
  const torch::Tensor labels = inside.to(torch::kLong);

  Run run;
  if (std::filesystem::exists(checkpoint)) run.load(checkpoint);
  double loss = 0;
  while (run.step < steps) loss = run.step_on(points, labels);
  if (!checkpoint.empty()) run.save(checkpoint);

  const double accuracy =
      run.network(points).argmax(1).eq(labels).to(torch::kDouble).mean().item<double>();
  const slimgrad::SavedTally::Count saved = run.saved.tally().total();
  std::cout << run.compression.summary();
  std::printf(
      "loss %.17g, accuracy %.3f, zeros behind first %.3f, in middle %.3f, saved %.1f times "
      "fewer bytes\n",
      loss, accuracy, run.compression.reports()[0].gate.sparsity,
      slimgrad::gate_report(run.network->middle->state().weight_plan,
                            run.network->middle->state().weight_stats)
          .sparsity,
      static_cast<double>(saved.plain_bytes) / static_cast<double>(saved.bytes));
}
