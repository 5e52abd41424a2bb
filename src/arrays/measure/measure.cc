// The array is cut into chunks of a fixed size. Chunks may be read in any order and by any number
// of threads; their sums wait in a list and are joined in the order of the list, so that the
// rounding of the result, too, is a function of the array alone. Histogram counts are integers,
// whose sum does not depend on the order, and need no list.
#include <slimgrad/measure.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <variant>
#include <vector>

#include "kernels/dispatch.h"
#include "kernels/measure/chunk_sums.h"
#include "kernels/measure/histogram.h"
#include "kernels/measure/measure.h"

namespace slimgrad {
namespace {

using Values = std::variant<std::span<const float>, std::span<const BFloat16Bits>,
                            std::span<const Float16Bits>>;

std::size_t size_of(const Values& values) {
  return std::visit([](const auto& span) { return span.size(); }, values);
}

TensorStats measure_values(Values values) {
  Measurement measurement = std::visit([](auto span) { return Measurement(span); }, values);
  measurement.run(0, measurement.num_chunks());
  return measurement.finish();
}

}  // namespace

struct Measurement::State {
  explicit State(Values all)
      : values(all),
        is_sampled(size_of(all) > kFullHistogramValues),
        chunks((size_of(all) + kChunkValues - 1) / kChunkValues) {
    kernels::obey_environment();
  }

  Values values;
  bool is_sampled;
  std::vector<kernels::ChunkSums> chunks;
  std::mutex histogram_mutex;
  LogHistogram histogram;
};

Measurement::Measurement(std::span<const float> values) : state_(new State(values)) {}
Measurement::Measurement(std::span<const BFloat16Bits> values) : state_(new State(values)) {}
Measurement::Measurement(std::span<const Float16Bits> values) : state_(new State(values)) {}
Measurement::~Measurement() = default;

std::size_t Measurement::num_chunks() const { return state_->chunks.size(); }

void Measurement::run(std::size_t first, std::size_t last) noexcept {
  LogHistogram histogram;
  std::visit(
      [&](auto values) {
        for (std::size_t i = first; i < last; ++i) {
          const std::size_t start = i * kChunkValues;
          const auto chunk = values.subspan(start, std::min(kChunkValues, values.size() - start));
          state_->chunks[i] = kernels::measure_chunk(chunk);
          if (state_->is_sampled)
            kernels::count_sampled_magnitudes(chunk, start, histogram.counts);
          else
            kernels::count_magnitudes(chunk, histogram.counts);
        }
      },
      state_->values);
  const std::lock_guard lock(state_->histogram_mutex);
  for (int bin = 0; bin < LogHistogram::kNumBins; ++bin)
    state_->histogram.counts[bin] += histogram.counts[bin];
}

TensorStats Measurement::finish() const {
  const std::uint64_t count = size_of(state_->values);
  kernels::sums::ArraySums sums;
  std::uint64_t num_left = count;
  for (const kernels::ChunkSums& chunk : state_->chunks) {
    const std::uint64_t num_values = std::min<std::uint64_t>(num_left, kChunkValues);
    num_left -= num_values;
    sums.join(chunk, num_values);
  }
  TensorStats stats;
  sums.finish(
      count, [](double x) { return std::sqrt(x); }, stats);
  stats.histogram = state_->histogram;
  return stats;
}

TensorStats measure(std::span<const float> values) { return measure_values(values); }
TensorStats measure(std::span<const BFloat16Bits> values) { return measure_values(values); }
TensorStats measure(std::span<const Float16Bits> values) { return measure_values(values); }

}  // namespace slimgrad
