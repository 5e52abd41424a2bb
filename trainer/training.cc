#include "trainer/training.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <set>
#include <span>
#include <tuple>
#include <utility>

#include <slimgrad/measure.h>
#include <slimgrad/seed.h>

namespace slimgrad::trainer {
namespace {

torch::Tensor view_of(const SampleBytes& samples, const SampleShape& shape) {
  std::vector<std::int64_t> sizes{samples.count};
  if (shape.is_text)
    sizes.push_back(shape.bytes());
  else
    sizes.insert(sizes.end(), {shape.channels, shape.height, shape.width});
  return torch::from_blob(const_cast<std::uint8_t*>(samples.values.data()), sizes, torch::kUInt8);
}

torch::Tensor labels_of(const SampleBytes& samples) {
  return torch::from_blob(const_cast<std::int64_t*>(samples.labels.data()),
                          {static_cast<std::int64_t>(samples.labels.size())}, torch::kLong);
}

// Mean and deviation of a channel, from whole numbers: no order of summation changes them.
std::pair<torch::Tensor, torch::Tensor> moments_of(const SampleBytes& samples,
                                                   const SampleShape& shape) {
  const auto channels = static_cast<std::size_t>(shape.channels);
  const auto plane = static_cast<std::size_t>(shape.height * shape.width);
  std::vector<std::uint64_t> sums(channels), squares(channels);
  for (std::size_t i = 0; i < samples.values.size(); ++i) {
    const std::uint64_t value = samples.values[i];
    sums[i / plane % channels] += value;
    squares[i / plane % channels] += value * value;
  }
  const double count = static_cast<double>(samples.values.size() / channels);
  torch::Tensor mean = torch::empty({shape.channels, 1, 1}), deviation = torch::empty_like(mean);
  for (std::size_t c = 0; c < channels; ++c) {
    const double m = static_cast<double>(sums[c]) / count;
    const double variance = static_cast<double>(squares[c]) / count - m * m;
    mean.data_ptr<float>()[c] = static_cast<float>(m);
    deviation.data_ptr<float>()[c] = static_cast<float>(std::sqrt(std::max(variance, 1.0)));
  }
  return {mean, deviation};
}

}  // namespace

Batches::Batches(DataSet data, bool augment, std::uint64_t seed)
    : data_(std::move(data)),
      augment_(augment),
      seed_(seed),
      training_(view_of(data_.training, data_.shape)),
      training_labels_(labels_of(data_.training)),
      test_(view_of(data_.test, data_.shape)),
      test_labels_(labels_of(data_.test)) {
  if (!data_.shape.is_text && data_.centring == Centring::kDataSet)
    std::tie(mean_, deviation_) = moments_of(data_.training, data_.shape);
}

torch::Tensor Batches::augmented(const torch::Tensor& indices, int epoch) const {
  const SampleShape& shape = data_.shape;
  const auto size = static_cast<std::size_t>(shape.bytes());
  torch::Tensor images =
      torch::empty({indices.numel(), shape.channels, shape.height, shape.width}, torch::kUInt8);
  const auto* index = indices.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < indices.numel(); ++i) {
    const auto from = static_cast<std::size_t>(index[i]);
    crop_and_flip(std::span(data_.training.values).subspan(from * size, size), shape, seed_,
                  static_cast<std::uint32_t>(epoch), from,
                  {images.data_ptr<std::uint8_t>() + static_cast<std::size_t>(i) * size, size});
  }
  return images;
}

Batch Batches::training(const torch::Tensor& indices, int epoch) const {
  if (data_.shape.is_text) return batch_of(training_.index_select(0, indices), {});
  const torch::Tensor images =
      augment_ ? augmented(indices.contiguous(), epoch) : training_.index_select(0, indices);
  return batch_of(images, training_labels_.index_select(0, indices));
}

Batch Batches::test(std::int64_t from, std::int64_t to) const {
  const torch::Tensor labels =
      data_.shape.is_text ? torch::Tensor() : test_labels_.slice(0, from, to);
  return batch_of(test_.slice(0, from, to), labels);
}

Batch Batches::batch_of(const torch::Tensor& bytes, const torch::Tensor& labels) const {
  if (data_.shape.is_text) {
    const torch::Tensor symbols = bytes.to(torch::kLong);
    return {symbols.slice(1, 0, kTextContext), symbols.slice(1, 1, kTextContext + 1)};
  }
  torch::Tensor input = bytes.to(torch::kFloat);
  if (data_.centring == Centring::kEachImage) {
    input.div_(64);
    input.sub_(input.mean({2, 3}, /*keepdim=*/true));
  } else {
    input.sub_(mean_).div_(deviation_);
  }
  return {input.contiguous(torch::MemoryFormat::ChannelsLast), labels};
}

// ---- the loop -----------------------------------------------------------------------------------

namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Part& network,
                                                        const TrainingOptions& options) {
  if (options.optimizer == "sgd")
    return std::make_unique<torch::optim::SGD>(network.parameters(),
                                               torch::optim::SGDOptions(options.learning_rate)
                                                   .momentum(options.momentum)
                                                   .weight_decay(options.weight_decay));
  return std::make_unique<torch::optim::AdamW>(
      network.parameters(),
      torch::optim::AdamWOptions(options.learning_rate).weight_decay(options.weight_decay));
}

// One row for each prediction.
torch::Tensor rows(const torch::Tensor& scores) { return scores.reshape({-1, scores.size(-1)}); }

std::int64_t num_correct(const torch::Tensor& scores, const torch::Tensor& targets) {
  return scores.argmax(1).eq(targets).sum().item<std::int64_t>();
}

std::int64_t activation_values(const Part& network) {
  std::int64_t values = 0;
  for (const auto& module : network.modules())
    if (const auto* activation = dynamic_cast<const Activation*>(module.get()))
      values += activation->elements;
  return values;
}

}  // namespace

std::string hash_of(const std::vector<torch::Tensor>& tensors) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const torch::Tensor& tensor : tensors) {
    const torch::Tensor whole = tensor.contiguous();
    const auto* bytes = static_cast<const std::uint8_t*>(whole.const_data_ptr());
    for (std::size_t i = 0; i < whole.nbytes(); ++i) hash = (hash ^ bytes[i]) * 0x100000001b3u;
  }
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(hash));
  return digits;
}

Evaluation evaluate(Part& network, const Batches& batches) {
  constexpr std::int64_t kBatch = 500;
  torch::NoGradGuard no_grad;
  network.eval();
  double loss = 0;
  std::int64_t correct = 0, judged = 0;
  for (std::int64_t from = 0; from < batches.num_test(); from += kBatch) {
    const Batch batch = batches.test(from, std::min(from + kBatch, batches.num_test()));
    const torch::Tensor scores = rows(network.forward(batch.input));
    const torch::Tensor targets = batch.target.reshape(-1);
    loss += torch::nn::functional::cross_entropy(
                scores, targets,
                torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum))
                .item<double>();
    correct += num_correct(scores, targets);
    judged += targets.numel();
  }
  const auto count = static_cast<double>(judged);
  return {loss / count, static_cast<double>(correct) / count};
}

Training::Training(PartPtr network, const GradientChoice& gradients, const Batches& batches,
                   const TrainingOptions& options, RunState& state, TrainingHooks hooks)
    : network_(std::move(network)),
      gates_(*network_, gradients),
      batches_(batches),
      options_(options),
      state_(state),
      hooks_(std::move(hooks)),
      stored_(!gradients.sparse),
      refreshes_(gradients.refresh_every == 0),
      optimizer_(make_optimizer(*network_, options)),
      order_(at::detail::createCPUGenerator(options.seed)),
      order_state_(order_.get_state()) {
  if (options.saved_bits) {
    const std::uint64_t seed = derive_seed(options.seed, {"saved"});
    saved_tensors_.emplace(SavedOptions{.bits = *options.saved_bits}, seed);
    saved_tensors_->load_state(torch::tensor(
        {static_cast<std::int64_t>(seed), static_cast<std::int64_t>(state.tensors_packed)}));
  }
  for (const auto& parameter : network_->named_parameters())
    tensors_["network." + parameter.key()] = parameter.value();
  for (const auto& buffer : network_->named_buffers())
    tensors_["network." + buffer.key()] = buffer.value();
  for (const auto& [name, tensor] : gates_.state()) tensors_["gate." + name] = tensor;
  tensors_["order"] = order_state_;
}

std::int64_t Training::steps_an_epoch() const {
  return batches_.num_training() / options_.batch_size;
}

torch::Tensor Training::begin_epoch() {
  network_->train();
  if (state_.step_in_epoch == 0) {
    order_state_.copy_(order_.get_state());
    if (refreshes_) gates_.refresh();
  } else {
    order_.set_state(order_state_);
  }
  return torch::randperm(batches_.num_training(), order_, torch::kLong);
}

Training::Outcome Training::take_step(const Batch& batch) {
  gates_.before_step();
  const torch::Tensor targets = batch.target.reshape(-1);
  torch::Tensor scores, loss;
  {
    std::optional<SavedTensorsGuard> guard;
    if (saved_tensors_) guard.emplace(*saved_tensors_);
    scores = rows(network_->forward(batch.input));
    loss = torch::nn::functional::cross_entropy(scores, targets);
  }
  optimizer_->zero_grad();
  loss.backward();
  optimizer_->step();
  return {loss.item<double>(), num_correct(scores, targets), targets.numel()};
}

GradientLook Training::look(const std::string& layer, const char* tensor,
                            const torch::Tensor& gradient) {
  const double start = now();
  const torch::Tensor whole =
      gradient.is_non_overlapping_and_dense() ? gradient : gradient.contiguous();
  const std::span<const float> values(whole.const_data_ptr<float>(),
                                      static_cast<std::size_t>(whole.numel()));
  GradientLook look{.layer = layer, .tensor = tensor, .stats = {}, .fits = {}, .sizes = {}};
  if (options_.histograms) look.stats = measure(values);
  if (options_.fits) look.fits = fit_families(values);
  look_seconds_ += now() - start;
  return look;
}

std::vector<GradientLook> Training::look_at_weights() {
  std::vector<GradientLook> looks;
  for (const Layer* layer : layers_of(*network_)) {
    const torch::Tensor gradient = layer->weight.grad();
    if (!gradient.defined()) continue;
    looks.push_back(look(layer->name, "weight_gradient", gradient));
    if (!options_.bits) continue;
    const torch::Tensor whole = gradient.contiguous();
    const std::span<const float> values(whole.const_data_ptr<float>(),
                                        static_cast<std::size_t>(whole.numel()));
    for (const int bits : kQuantizerBits)
      if (CodeSizes sizes = code_sizes(values, bits); !sizes.codes.empty())
        looks.back().sizes.push_back(std::move(sizes));
  }
  return looks;
}

bool Training::step(const torch::Tensor& order, std::int64_t index) {
  const std::int64_t size = options_.batch_size;
  const double start = now();
  look_seconds_ = 0;
  const double rate = options_.learning_rate * rate_share(options_.schedule, state_.step,
                                                          options_.epochs * steps_an_epoch());
  for (auto& group : optimizer_->param_groups()) group.options().set_lr(rate);
  const bool looks =
      std::ranges::find(options_.probe_steps, state_.step + 1) != options_.probe_steps.end();
  std::vector<GradientLook> seen;
  GradientWatch& watch = *layers_of(*network_).front()->watch;
  watch.on = looks;
  watch.see = [&](const std::string& layer, const torch::Tensor& gradient) {
    seen.push_back(look(layer, "neural_gradient", gradient));
  };
  const Outcome outcome = take_step(
      batches_.training(order.slice(0, index * size, (index + 1) * size), state_.epoch + 1));
  watch = {};
  const double seconds = now() - start - look_seconds_;
  if (!std::isfinite(outcome.loss)) return false;
  step_seconds_.push_back(seconds);
  state_.epoch_seconds += seconds;
  state_.result.step_seconds += seconds;
  state_.loss_sum += outcome.loss;
  state_.correct += outcome.correct;
  state_.judged += outcome.judged;
  state_.activation_values = activation_values(*network_);
  if (saved_tensors_) {
    const SavedTally::Count saved = saved_tensors_->tally().total();
    state_.plain_saved_bytes = static_cast<std::int64_t>(saved.plain_bytes);
    state_.saved_bytes = static_cast<std::int64_t>(saved.bytes);
    state_.tensors_packed =
        static_cast<std::uint64_t>(saved_tensors_->state()[1].item<std::int64_t>());
  }
  ++state_.step;
  ++state_.step_in_epoch;
  const std::vector<LayerReport> reports = gates_.reports();
  state_.epoch_gradients.add(reports, stored_);
  state_.result.gradients.add(reports, stored_);
  if (looks) {
    std::ranges::reverse(seen);  // backward meets the last layer first
    for (GradientLook& look : look_at_weights()) seen.push_back(std::move(look));
    hooks_.looked(seen);
  }
  return true;
}

bool Training::stops() const {
  return hooks_.interrupted() || (options_.stop_after > 0 && state_.step == options_.stop_after);
}

void Training::tell_progress() {
  Progress progress{.epoch = state_.epoch + 1,
                    .num_epochs = options_.epochs,
                    .step = state_.step,
                    .num_steps = options_.epochs * steps_an_epoch(),
                    .samples = (state_.step - first_step_) * options_.batch_size,
                    .batch_size = options_.batch_size,
                    .last_of_epoch = state_.step_in_epoch == steps_an_epoch()};
  progress.loss = state_.loss_sum / static_cast<double>(state_.step_in_epoch);
  progress.accuracy = static_cast<double>(state_.correct) / static_cast<double>(state_.judged);
  progress.samples_per_second = static_cast<double>(progress.samples) / (now() - started_);
  hooks_.progress(progress);
}

void Training::end_epoch() {
  EpochResult epoch{.epoch = ++state_.epoch, .steps = state_.step};
  epoch.rate = optimizer_->param_groups().front().options().get_lr();
  epoch.loss = state_.loss_sum / static_cast<double>(state_.step_in_epoch);
  epoch.accuracy = static_cast<double>(state_.correct) / static_cast<double>(state_.judged);
  epoch.seconds = state_.epoch_seconds;
  epoch.activation_values = state_.activation_values;
  epoch.plain_saved_bytes = state_.plain_saved_bytes;
  epoch.saved_bytes = state_.saved_bytes;
  const double start = now();
  const Evaluation evaluation = evaluate(*network_, batches_);
  epoch.test_loss = evaluation.loss;
  epoch.test_accuracy = evaluation.accuracy;
  epoch.test_seconds = now() - start;
  state_.result.epochs.push_back(epoch);
  state_.step_in_epoch = 0;
  hooks_.epoch_done(epoch);
  state_.loss_sum = state_.epoch_seconds = 0;
  state_.correct = state_.judged = 0;
  state_.epoch_gradients = {};
}

void Training::end() {
  std::set<const void*> of_gates;
  for (const auto& [name, tensor] : gates_.state()) of_gates.insert(tensor.const_data_ptr());
  std::vector<torch::Tensor> weights = network_->parameters();
  for (const torch::Tensor& buffer : network_->buffers())
    if (!of_gates.contains(buffer.const_data_ptr())) weights.push_back(buffer);
  state_.result.weights = hash_of(weights);
  state_.result.median_step_seconds = median(step_seconds_);
  state_.result.finished = true;
}

bool Training::run() {
  started_ = now();
  first_step_ = state_.step;
  while (state_.epoch < options_.epochs && !state_.result.diverged) {
    const torch::Tensor order = begin_epoch();
    while (state_.step_in_epoch < steps_an_epoch()) {
      if (!step(order, state_.step_in_epoch)) {
        state_.result.diverged = true;
        break;
      }
      tell_progress();
      if (stops()) {
        hooks_.save();
        return false;
      }
    }
    if (state_.result.diverged) break;
    end_epoch();
    if (state_.epoch == options_.epochs) break;
    hooks_.save();
    if (hooks_.interrupted()) return false;
  }
  end();
  hooks_.save();
  return true;
}

}  // namespace slimgrad::trainer
