// Gradients for the tests of compaction.
#ifndef SLIMGRAD_TESTS_KERNELS_COMPACT_SAMPLES_H_
#define SLIMGRAD_TESTS_KERNELS_COMPACT_SAMPLES_H_

#include <slimgrad/half.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "base/rng.h"
#include "kernels/apply/apply.h"
#include "kernels/half_float.h"

namespace slimgrad::kernels {

inline LoopTreatment pruning(float threshold) {
  LoopTreatment treatment;
  treatment.threshold = threshold;
  treatment.seed = 11;
  return treatment;
}

template <typename T>
std::vector<T> lognormal_values(std::int64_t count) {
  std::mt19937_64 random(static_cast<std::uint64_t>(count));
  std::normal_distribution<float> normal;
  std::vector<T> values;
  for (std::int64_t i = 0; i < count; ++i) {
    const float magnitude = random() % 11 == 0 ? 0.0f : std::exp(1.5f * normal(random));
    const float x = random() % 2 == 0 ? magnitude : -magnitude;
    values.push_back(from_float_bits<T>(std::bit_cast<std::uint32_t>(x)));
  }
  return values;
}

// By the specification of apply().
template <typename T>
std::vector<T> pruned_values(const LoopTreatment& treatment, const std::vector<T>& values,
                             std::uint64_t first_index) {
  std::vector<T> pruned = values;
  if (treatment.prunes())
    apply_scalar(treatment, values.data(), pruned.data(), values.size(), first_index);
  return pruned;
}

// The leading digits of draw and probability agree, so that they do not decide.
inline std::vector<float> undecided_values(const LoopTreatment& treatment,
                                           std::uint64_t first_index, std::uint64_t count) {
  const RandomStream random(treatment.seed, Stream::kPrune);
  std::vector<float> values;
  for (std::uint64_t i = 0; i < count; ++i)
    values.push_back((static_cast<float>(random.draw(first_index + i)) + 0.5f) * 0x1p-16f *
                     treatment.threshold);
  return values;
}

// 80 values with Inf, NaN and zeros of both signs among them.
inline std::vector<float> special_values() {
  std::vector<float> values = lognormal_values<float>(80);
  values[0] = values[41] = std::numeric_limits<float>::infinity();
  values[9] = -std::numeric_limits<float>::infinity();
  values[17] = std::numeric_limits<float>::quiet_NaN();
  values[18] = std::bit_cast<float>(0xffc12345u);
  values[3] = values[79] = -0.0f;
  return values;
}

inline std::vector<std::uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<std::uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<std::uint32_t>(value));
  return bits;
}

}  // namespace slimgrad::kernels

#endif  // SLIMGRAD_TESTS_KERNELS_COMPACT_SAMPLES_H_
