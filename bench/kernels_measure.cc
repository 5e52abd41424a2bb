// measure(), one thread, for every kernel set and input type: a chunk that stays in the cache, and
// its two halves apart.
#include <benchmark/benchmark.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <slimgrad/measure.h>

#include "kernel_choice.h"
#include "kernels/dispatch.h"
#include "kernels/measure/histogram.h"
#include "kernels/measure/measure.h"

namespace slimgrad {
namespace {

// Lognormal with random signs and a quarter of zeros: a neural gradient behind a ReLU.
template <typename T>
std::vector<T> make_values(std::size_t num_values) {
  std::mt19937_64 engine(1);
  std::normal_distribution<double> normal(-2.0, 1.5);
  std::vector<T> values(num_values);
  for (T& value : values) {
    const std::uint64_t coin = engine();
    const float x = static_cast<float>(std::exp(normal(engine)) * (coin & 1 ? 1 : -1));
    const std::uint32_t bits = (coin & 6) == 0 ? 0 : std::bit_cast<std::uint32_t>(x);
    if constexpr (std::is_same_v<T, float>)
      value = std::bit_cast<float>(bits);
    else if constexpr (std::is_same_v<T, BFloat16Bits>)
      value.bits = static_cast<std::uint16_t>(bits >> 16);
    else  // Ten mantissa bits below an exponent near the middle.
      value.bits = static_cast<std::uint16_t>((bits >> 13) & 0x3fff);
  }
  return values;
}

void set_rate(benchmark::State& state, std::size_t num_values) {
  state.SetItemsProcessed(static_cast<std::int64_t>(state.iterations() * num_values));
}

template <typename T>
void sums(benchmark::State& state, const std::string& set) {
  const std::vector<T> values = make_values<T>(Measurement::kChunkValues);
  kernels::select_kernel_set(set);
  for (auto _ : state) benchmark::DoNotOptimize(kernels::measure_chunk(std::span(values)));
  kernels::select_kernel_set(chosen_kernel_set());
  set_rate(state, values.size());
}

template <typename T>
void histogram(benchmark::State& state, bool is_sampled) {
  const std::vector<T> values = make_values<T>(Measurement::kChunkValues);
  LogHistogram counts;
  for (auto _ : state) {
    if (is_sampled)
      kernels::count_sampled_magnitudes(values, 0, counts.counts);
    else
      kernels::count_magnitudes(values, counts.counts);
    benchmark::DoNotOptimize(counts);
  }
  set_rate(state, values.size());
}

template <typename T>
void add(const std::string& type) {
  for (const std::string& set : kernels::kernel_sets())
    if (chosen_kernel_set() == "best" || chosen_kernel_set() == set)
      benchmark::RegisterBenchmark(("measure/sums/" + type + "/" + set).c_str(), sums<T>, set);
  benchmark::RegisterBenchmark(("measure/histogram/" + type + "/full").c_str(), histogram<T>,
                               false);
  benchmark::RegisterBenchmark(("measure/histogram/" + type + "/sampled").c_str(), histogram<T>,
                               true);
}

const bool added = [] {
  add<float>("float32");
  add<BFloat16Bits>("bfloat16");
  add<Float16Bits>("float16");
  return true;
}();

}  // namespace
}  // namespace slimgrad
