// Trains a network of torch::nn with slimgrad::compress() for some steps, for comparison with the
// same network in Python:
//
//   cpp_networks NETWORK SETTINGS IN OUT
//
// IN and OUT are dictionaries of tensors, as torch.save writes them. IN: parameters by name, and
// the inputs "x.STEP". OUT: gradients "grad.STEP.PARAMETER", the state "state.NAME", and what was
// left, as empty tensors "left.NAME".
#include <slimgrad/compress.h>
#include <slimgrad/nn.h>
#include <torch/torch.h>

#include <ATen/autocast_mode.h>

#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace {

using torch::nn::Conv1d, torch::nn::Conv2d, torch::nn::ConvTranspose2d, torch::nn::Linear;

struct Network : torch::nn::Module {
  virtual torch::Tensor loss(const torch::Tensor& x) = 0;
};

struct Cnn : Network {
  Cnn() {
    register_module("conv1", conv1);
    register_module("norm", norm);
    register_module("conv2", conv2);
    register_module("up", up);
    register_module("conv3", conv3);
    register_module("fc", fc);
  }
  torch::Tensor loss(const torch::Tensor& x) override {
    torch::Tensor y = torch::relu(norm(conv1(x)));
    y = up(conv2(y).relu_());
    y = torch::relu(conv3(y.flatten(2)));
    y = torch::tanh(conv3(y));  // a layer that is used twice
    return torch::log_softmax(fc(y.flatten(1)), 1).select(1, 0).mean().neg();
  }
  Conv2d conv1{torch::nn::Conv2dOptions(3, 16, 3).padding(1)};
  torch::nn::BatchNorm2d norm{16};
  Conv2d conv2{torch::nn::Conv2dOptions(16, 16, 3).stride(2).groups(4).bias(false)};
  ConvTranspose2d up{torch::nn::ConvTranspose2dOptions(16, 8, 2).stride(2)};
  Conv1d conv3{torch::nn::Conv1dOptions(8, 8, 3).padding(1)};
  Linear fc{8 * 14 * 14, 300};
};

struct Transformer : Network {
  Transformer() {
    register_module("embedding", embedding);
    register_module("attention", attention);
    register_module("norm1", norm1);
    register_module("linear1", linear1);
    register_module("linear2", linear2);
    register_module("norm2", norm2);
    register_module("cross", cross);
    register_module("apart", apart);
    register_module("sizes", sizes);
    register_module("head", head);
    register_module("frozen", frozen);
    frozen->weight.set_requires_grad(false);
    head->weight = head->replace_parameter(embedding->weight);
  }
  torch::Tensor loss(const torch::Tensor& tokens) override {
    const torch::Tensor x = embedding(tokens);
    torch::Tensor y = norm1(x + std::get<0>(attention(x, x, x)));
    y = norm2(y + linear2(torch::gelu(linear1(y))));
    y = y + std::get<0>(cross(y, x, x));
    y = y + std::get<0>(apart(y, x, torch::tanh(x)));
    const torch::Tensor half = x.narrow(-1, 0, 32);
    y = y + std::get<0>(sizes(y, half, half));
    y = head(frozen(y));
    return torch::log_softmax(y, -1).select(2, 0).mean().neg();
  }
  // Its weight is that of another module.
  struct HeadImpl : torch::nn::LinearImpl {
    using torch::nn::LinearImpl::LinearImpl;
    torch::Tensor replace_parameter(const torch::Tensor& parameter) {
      parameters_["weight"] = parameter;
      return parameter;
    }
  };
  TORCH_MODULE(Head);
  torch::nn::Embedding embedding{60, 64};
  torch::nn::MultiheadAttention attention{64, 4}, cross{64, 4},
      apart{torch::nn::MultiheadAttentionOptions(64, 4).bias(false)},
      sizes{torch::nn::MultiheadAttentionOptions(64, 4).kdim(32).vdim(32)};
  torch::nn::LayerNorm norm1{torch::nn::LayerNormOptions({64})},
      norm2{torch::nn::LayerNormOptions({64})};
  Linear linear1{64, 128}, linear2{torch::nn::LinearOptions(128, 64).bias(false)};
  Head head{torch::nn::LinearOptions(64, 60)};
  Linear frozen{64, 64};
};

slimgrad::CompressOptions options_of(const std::string& settings, bool is_cnn) {
  slimgrad::CompressOptions options;
  slimgrad::GradientSettings& gradient = options.gate.settings;
  options.gate.seed = 7;
  options.gate.min_elements = 1000;
  options.stream = 3;
  if (settings != "quantize" && settings != "scale") {
    gradient.prune = slimgrad::PruneKind::kStochastic;
    gradient.sparsity = 0.6;
  }
  if (settings == "quantize" || settings == "both" || settings == "autocast") gradient.bits = 6;
  if (settings == "spread") {
    options.group.allocation = slimgrad::AllocationObjective::kMinCosine;
    gradient.method = slimgrad::ThresholdMethod::kLognormal;
    options.exclude = is_cnn ? std::vector<std::string>{"conv2"}
                             : std::vector<std::string>{"linear1", "attention.k"};
  }
  if (settings == "scale") {
    gradient.format = slimgrad::FloatFormat(4, 1);
    gradient.bits = 6;
    gradient.fixed_scale = 1.0 / 65536;
    options.group.growth_interval = 2;
  }
  if (settings == "schedule") options.gate.schedule = {{0, 0.5}, {2, 0.9}};
  return options;
}

// Each once, by its first name.
std::vector<std::pair<std::string, torch::Tensor>> parameters_of(const Network& network) {
  std::vector<std::pair<std::string, torch::Tensor>> parameters;
  std::set<const void*> seen;
  for (const auto& item : network.named_parameters())
    if (seen.insert(item.value().unsafeGetTensorImpl()).second)
      parameters.emplace_back(item.key(), item.value());
  return parameters;
}

std::vector<char> read(const char* path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

int main(int, char** argv) {
  const bool is_cnn = std::string(argv[1]).starts_with("cnn");
  std::shared_ptr<Network> network;
  if (is_cnn)
    network = std::make_shared<Cnn>();
  else
    network = std::make_shared<Transformer>();
  const std::string settings = argv[2];
  const auto in = slimgrad::nn::to_state(torch::pickle_load(read(argv[3])));
  slimgrad::nn::StateDict out("State");
  {
    const torch::NoGradGuard no_gradient;
    for (auto& [name, parameter] : parameters_of(*network)) parameter.copy_(in[name]);
  }
  slimgrad::Compression compression = slimgrad::compress(*network, options_of(settings, is_cnn));
  for (int step = 0; in.contains("x." + std::to_string(step)); ++step) {
    network->zero_grad();
    at::autocast::set_autocast_enabled(at::kCPU, settings == "autocast");
    const torch::Tensor loss = network->loss(in["x." + std::to_string(step)]);
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
    compression.backward(loss);
    const torch::NoGradGuard no_gradient;
    out.insert("loss." + std::to_string(step), loss.detach());
    for (auto& [name, parameter] : parameters_of(*network)) {
      if (!parameter.grad().defined()) continue;
      out.insert("grad." + std::to_string(step) + "." + name, parameter.grad().clone());
      parameter.sub_(parameter.grad(), 0.1);
    }
  }
  for (const auto& item : compression.state()) out.insert("state." + item.key(), item.value());
  for (const auto& [name, why] : compression.left()) out.insert("left." + name, torch::zeros({0}));
  std::cout << compression.summary();
  const std::vector<char> bytes = torch::pickle_save(slimgrad::nn::to_dict(out));
  std::ofstream(argv[4], std::ios::binary).write(bytes.data(), static_cast<long>(bytes.size()));
}
