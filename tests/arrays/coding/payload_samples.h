// Tensors for the tests of payloads.
#ifndef SLIMGRAD_TESTS_ARRAYS_CODING_PAYLOAD_SAMPLES_H_
#define SLIMGRAD_TESTS_ARRAYS_CODING_PAYLOAD_SAMPLES_H_

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <slimgrad/apply.h>
#include <slimgrad/payload.h>

#include "arrays/coding/checksum.h"

namespace slimgrad {

using Bytes = std::vector<std::uint8_t>;

// Lognormal magnitudes, as gradients have.
inline std::vector<float> gradient(std::size_t n, std::uint64_t seed = 1) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& x : values) x = std::exp(2 * normal(random) - 9) * (random() & 1 ? 1.0f : -1.0f);
  return values;
}

inline std::vector<float> pruned_gradient(std::size_t n, double threshold) {
  std::vector<float> values = gradient(n);
  prune(values, values, threshold, 7);
  return values;
}

// The upper half of every float32.
inline std::vector<BFloat16Bits> to_bfloat16(std::span<const float> values) {
  std::vector<BFloat16Bits> halves(values.size());
  for (std::size_t i = 0; i < values.size(); ++i)
    halves[i].bits = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(values[i]) >> 16);
  return halves;
}

template <typename T>
TensorView view(const std::vector<T>& values, DType dtype) {
  return {values.data(), dtype, {values.size()}};
}

template <typename T>
Bytes bytes_of_values(const std::vector<T>& values) {
  Bytes bytes(values.size() * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

inline std::vector<float> floats_of(const Bytes& bytes) {
  std::vector<float> values(bytes.size() / 4);
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

struct NamedPayload {
  std::string name;
  Bytes payload;
};

// One payload of every kind and form, of n values each; one of every method of coding if n is large
// enough.
inline std::vector<NamedPayload> payloads_of_every_kind(std::size_t n) {
  const std::vector<float> plain = gradient(n), sparse = pruned_gradient(n, 1e-3);
  const std::vector<BFloat16Bits> halves = to_bfloat16(plain);
  const std::vector<double> doubles(plain.begin(), plain.end());
  std::vector<std::int8_t> codes(n);
  for (std::size_t i = 0; i < n; ++i)
    codes[i] = static_cast<std::int8_t>(std::lround(plain[i] * 1e4f) % 100);
  const std::vector<std::uint16_t> noise = [&] {
    std::mt19937 random(3);
    std::vector<std::uint16_t> words(n);
    for (auto& word : words) word = static_cast<std::uint16_t>(random());
    return words;
  }();
  std::vector<NamedPayload> all;
  const auto add = [&](std::string name, const TensorView& tensor, EncodeOptions options) {
    all.push_back({std::move(name), encode(tensor, options)});
  };
  using enum PayloadKind;
  const TensorView floats = view(plain, DType::kFloat32), pruned = view(sparse, DType::kFloat32);
  add("lossless-float32", floats, {.kind = kLossless});
  add("lossless-huffman", floats, {.kind = kLossless, .coder = EntropyCoder::kHuffman});
  add("lossless-bfloat16", view(halves, DType::kBFloat16), {.kind = kLossless});
  add("lossless-float64", view(doubles, DType::kFloat64), {.kind = kLossless});
  add("lossless-int8", view(codes, DType::kInt8), {.kind = kLossless});
  add("raw-float16", view(noise, DType::kFloat16), {.kind = kLossless});
  add("uniform-counted", floats, {.kind = kUniform, .bits = 6});
  add("uniform-gennorm", floats, {.kind = kUniform, .model = TableModel::kGennorm});
  add("uniform-laplace-huffman", floats,
      {.kind = kUniform, .coder = EntropyCoder::kHuffman, .model = TableModel::kLaplace});
  add("uniform-packed", floats, {.kind = kUniform, .coder = EntropyCoder::kNone, .bits = 5});
  add("uniform-rate2", floats, {.kind = kUniform, .rate = 2});
  add("uniform-rate12-extra", floats, {.kind = kUniform, .rate = 12});
  add("uniform-rate4-gennorm-bfloat16", view(halves, DType::kBFloat16),
      {.kind = kUniform, .rate = 4, .model = TableModel::kGennorm});
  add("uniform-max-error", floats, {.kind = kUniform, .max_error = 1e-5});
  add("float-1-4-3", floats, {.kind = kFloat});
  add("float-1-5-0-bfloat16", view(halves, DType::kBFloat16),
      {.kind = kFloat, .format = FloatFormat(5, 0)});
  add("pruned-exact", pruned, {.kind = kPruned});
  add("pruned-bfloat16", pruned, {.kind = kPruned, .survivors = Survivors::kBFloat16});
  add("pruned-float", pruned, {.kind = kPruned, .survivors = Survivors::kFloat});
  add("topk", floats, {.kind = kTopk, .bits = 2});
  add("topk-7-of-64-bfloat16", view(halves, DType::kBFloat16),
      {.kind = kTopk, .bits = 3, .k = 7, .of = 64});
  return all;
}

// Makes the checksum right again after a change, so that what is behind it is tested.
inline void repair_checksum(Bytes& payload) {
  const std::uint64_t sum = checksum(std::span(payload).first(payload.size() - 8));
  std::memcpy(payload.data() + payload.size() - 8, &sum, 8);
}

}  // namespace slimgrad

#endif  // SLIMGRAD_TESTS_ARRAYS_CODING_PAYLOAD_SAMPLES_H_
