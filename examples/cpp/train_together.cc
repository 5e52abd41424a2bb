// Processes that train one network together, each on data of its own; gradients are averaged coded
// (exchange.h), at 8 bits or what CODEC says:
//
//   train_together 0 2 29500 uniform8 & train_together 1 2 29500 uniform8
//
// RANK RANKS PORT [CODEC [STEPS]]. All ranks end with the same weights, to the bit.
#include <slimgrad/exchange.h>
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "socket_group.h"

namespace {

// Points of a plane, of which a rank has its own, and which side of a circle they are on.
torch::Tensor points(int rank, int step) {
  torch::manual_seed(1 + 1000 * rank + step);
  return torch::randn({256, 2});
}

void train(int rank, int ranks, int port, const slimgrad::Codec& codec, int steps) {
  const auto group = socket_group(rank, ranks, port);
  const auto exchange = slimgrad::Exchange::of(group);
  torch::manual_seed(0);  // all begin with the same weights
  torch::nn::Sequential network(torch::nn::Linear(2, 128), torch::nn::Tanh(),
                                torch::nn::Linear(128, 128), torch::nn::Tanh(),
                                torch::nn::Linear(128, 1));
  torch::optim::SGD optimizer(network->parameters(), 0.5);
  double loss_of_step = 0;
  std::int64_t sent = 0;
  for (int step = 0; step < steps; ++step) {
    const torch::Tensor x = points(rank, step);
    const torch::Tensor inside = (x.square().sum(1) < 1.4).to(torch::kFloat);
    const torch::Tensor loss =
        torch::binary_cross_entropy_with_logits(network->forward(x).squeeze(1), inside);
    optimizer.zero_grad();
    loss.backward();
    std::vector<torch::Tensor> gradients;
    for (const torch::Tensor& parameter : network->parameters())
      gradients.push_back(parameter.grad());
    const auto pending = exchange->all_reduce(
        gradients, codec, {.step = step, .divide_by = static_cast<double>(ranks)});
    pending->wait();  // a program with something else to compute does that before
    sent += pending->sent_bytes();
    optimizer.step();
    loss_of_step = loss.item<double>();
  }
  double sum = 0;
  for (const torch::Tensor& parameter : network->parameters())
    sum += parameter.abs().sum().item<double>();
  std::printf("rank %d: loss %.4f, %lld bytes sent, weights %.17g\n", rank, loss_of_step,
              static_cast<long long>(sent), sum);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::cerr << "usage: train_together RANK RANKS PORT [CODEC [STEPS]]\n";
    return 2;
  }
  try {
    train(std::atoi(argv[1]), std::atoi(argv[2]), std::atoi(argv[3]),
          slimgrad::Codec::parse(argc > 4 ? argv[4] : "uniform8"),
          argc > 5 ? std::atoi(argv[5]) : 60);
  } catch (const std::exception& error) {  // slimgrad::ExchangeError if a rank is gone or failed
    std::cerr << "rank " << argv[1] << ": " << error.what() << '\n';
    return 1;
  }
}
