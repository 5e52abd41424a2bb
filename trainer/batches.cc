#include "trainer/batches.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "trainer/augmentation.h"

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

}  // namespace slimgrad::trainer
