#include "trainer/training.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "trainer/model.h"

namespace slimgrad::trainer {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Bytes to numbers around zero, without the mean colour of each image, which says nothing about its
// class and delays learning; laid out as oneDNN's convolutions like it best.
torch::Tensor to_input(const torch::Tensor& bytes) {
  torch::Tensor input = bytes.to(torch::kFloat).div_(64);
  input.sub_(input.mean({2, 3}, /*keepdim=*/true));
  return input.contiguous(torch::MemoryFormat::ChannelsLast);
}

void set_learning_rate(torch::optim::AdamW& optimizer, double rate) {
  for (auto& group : optimizer.param_groups())
    static_cast<torch::optim::AdamWOptions&>(group.options()).lr(rate);
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

struct StepOutcome {
  double loss;
  std::int64_t correct;
};

StepOutcome take_step(torch::nn::Sequential& network, torch::optim::AdamW& optimizer,
                      const Samples& training, const torch::Tensor& batch) {
  const torch::Tensor labels = training.labels.index_select(0, batch);
  const torch::Tensor scores = network->forward(to_input(training.images.index_select(0, batch)));
  const torch::Tensor loss = torch::nn::functional::cross_entropy(scores, labels);
  optimizer.zero_grad();
  loss.backward();
  optimizer.step();
  const auto value = loss.item<double>();
  if (!std::isfinite(value)) throw std::runtime_error("the loss is not finite: training diverged");
  return {value, scores.argmax(1).eq(labels).sum().item<std::int64_t>()};
}

}  // namespace

Samples to_samples(const GlyphSet& set) {
  const auto count = static_cast<std::int64_t>(set.labels.size());
  // from_blob only looks at the memory, so the tensors get copies of their own.
  return {torch::from_blob(const_cast<std::uint8_t*>(set.images.data()),
                           {count, kNumChannels, kImageSide, kImageSide}, torch::kUInt8)
              .clone(),
          torch::from_blob(const_cast<std::int64_t*>(set.labels.data()), {count}, torch::kLong)
              .clone()};
}

double one_cycle(std::int64_t step, std::int64_t num_steps) {
  const double done = (static_cast<double>(step) + 0.5) / static_cast<double>(num_steps);
  constexpr double kPeak = 0.2;
  return done < kPeak ? done / kPeak : (1 - done) / (1 - kPeak);
}

double accuracy_of(torch::nn::Sequential& network, const Samples& samples) {
  constexpr std::int64_t kBatch = 500;
  torch::NoGradGuard no_grad;
  network->eval();
  std::int64_t correct = 0;
  const std::int64_t count = samples.labels.size(0);
  for (std::int64_t from = 0; from < count; from += kBatch) {
    const std::int64_t to = std::min(from + kBatch, count);
    const torch::Tensor scores = network->forward(to_input(samples.images.slice(0, from, to)));
    correct += scores.argmax(1).eq(samples.labels.slice(0, from, to)).sum().item<std::int64_t>();
  }
  return static_cast<double>(correct) / static_cast<double>(count);
}

RunResult train(torch::nn::Sequential& network, const Samples& training, const Samples& test,
                const TrainingOptions& options,
                const std::function<void(const Progress&)>& report) {
  torch::optim::AdamW optimizer(
      network->parameters(),
      torch::optim::AdamWOptions(options.learning_rate).weight_decay(options.weight_decay));
  const at::Generator order = at::detail::createCPUGenerator(options.seed);
  const std::int64_t count = training.labels.size(0), batches = count / options.batch_size;
  const Clock::time_point start = Clock::now();
  RunResult result;
  std::vector<double> step_seconds;
  Progress progress{.num_epochs = options.epochs, .num_steps = options.epochs * batches};
  for (int epoch = 1; epoch <= options.epochs; ++epoch) {
    network->train();
    const torch::Tensor permutation = torch::randperm(count, order, torch::kLong);
    double loss_sum = 0;
    std::int64_t correct = 0;
    for (std::int64_t i = 0; i < batches; ++i) {
      const Clock::time_point step_start = Clock::now();
      set_learning_rate(optimizer,
                        options.learning_rate * one_cycle(progress.step, progress.num_steps));
      const StepOutcome outcome =
          take_step(network, optimizer, training,
                    permutation.slice(0, i * options.batch_size, (i + 1) * options.batch_size));
      step_seconds.push_back(seconds_since(step_start));
      result.gradients.add(gate_reports(network));
      loss_sum += outcome.loss;
      correct += outcome.correct;
      ++progress.step;
      progress.images += options.batch_size;
      progress.epoch = epoch;
      progress.last_of_epoch = i + 1 == batches;
      progress.loss = loss_sum / static_cast<double>(i + 1);
      progress.accuracy =
          static_cast<double>(correct) / static_cast<double>((i + 1) * options.batch_size);
      progress.images_per_second = static_cast<double>(progress.images) / seconds_since(start);
      report(progress);
    }
    result.loss_by_epoch.push_back(progress.loss);
    result.accuracy_by_epoch.push_back(accuracy_of(network, test));
    result.seconds_by_epoch.push_back(
        std::accumulate(step_seconds.end() - batches, step_seconds.end(), 0.0));
  }
  result.test_accuracy = result.accuracy_by_epoch.back();
  result.mean_step_seconds = std::accumulate(step_seconds.begin(), step_seconds.end(), 0.0) /
                             static_cast<double>(step_seconds.size());
  result.median_step_seconds = median(step_seconds);
  return result;
}

}  // namespace slimgrad::trainer
