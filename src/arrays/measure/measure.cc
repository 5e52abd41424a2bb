// The array is cut into chunks of a fixed size. Chunks may be read in any order and by any number
// of threads; their sums wait in a list and are joined in the order of the list, so that the
// rounding of the result, too, is a function of the array alone. Histogram counts are integers,
// whose sum does not depend on the order, and need no list.
#include <slimgrad/measure.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <numbers>
#include <variant>
#include <vector>

#include "kernels/dispatch.h"
#include "kernels/magnitude.h"
#include "kernels/measure/histogram.h"
#include "kernels/measure/measure.h"

namespace slimgrad {
namespace {

using Values = std::variant<std::span<const float>, std::span<const BFloat16Bits>,
                            std::span<const Float16Bits>>;

std::size_t size_of(const Values& values) {
  return std::visit([](const auto& span) { return span.size(); }, values);
}

// Mean and sum of squared deviations of a growing set of numbers, joined set by set: Chan, Golub
// and LeVeque (1979). Deviations are taken inside a chunk and then between chunks, so that no
// difference of two large sums over the whole array is ever formed.
class Spread {
 public:
  void join(double num_values, double sum, double sum_square) {
    if (num_values == 0) return;
    const double mean = sum / num_values;
    // Rounding may take equal values below zero.
    const double deviation = std::max(0.0, sum_square - sum * mean);
    const double total = num_values_ + num_values;
    const double delta = mean - mean_;
    deviation_ += deviation + delta * delta * (num_values_ * num_values / total);
    mean_ += delta * (num_values / total);
    num_values_ = total;
  }
  double mean() const { return mean_; }
  double standard_deviation() const {
    return num_values_ == 0 ? 0.0 : std::sqrt(deviation_ / num_values_);
  }

 private:
  double num_values_ = 0;
  double mean_ = 0;
  double deviation_ = 0;
};

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
  TensorStats stats;
  stats.count = size_of(state_->values);
  stats.histogram = state_->histogram;
  Spread log2;
  std::uint32_t max_bits = 0;
  double sum_abs = 0, sum_square = 0;
  std::uint64_t num_left = stats.count;
  for (const kernels::ChunkSums& chunk : state_->chunks) {
    const std::uint64_t num_values = std::min<std::uint64_t>(num_left, kChunkValues);
    num_left -= num_values;
    stats.zeros += chunk.num_zeros;
    stats.nonfinite += chunk.num_nonfinite;
    log2.join(static_cast<double>(num_values - chunk.num_zeros - chunk.num_nonfinite),
              chunk.sum_log2, chunk.sum_log2_square);
    max_bits = std::max(max_bits, chunk.max_bits);
    sum_abs += chunk.sum_abs;
    sum_square += chunk.sum_square;
  }
  stats.log_mean = log2.mean() * std::numbers::ln2;
  stats.log_std = log2.standard_deviation() * std::numbers::ln2;
  stats.max_abs = kernels::magnitude_value(max_bits);
  if (stats.num_finite() > 0) {
    stats.zero_fraction =
        static_cast<double>(stats.zeros) / static_cast<double>(stats.num_finite());
    stats.mean_abs = sum_abs / static_cast<double>(stats.num_finite());
    stats.mean_square = sum_square / static_cast<double>(stats.num_finite());
  }
  return stats;
}

TensorStats measure(std::span<const float> values) { return measure_values(values); }
TensorStats measure(std::span<const BFloat16Bits> values) { return measure_values(values); }
TensorStats measure(std::span<const Float16Bits> values) { return measure_values(values); }

}  // namespace slimgrad
