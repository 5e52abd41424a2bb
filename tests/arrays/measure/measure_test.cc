// measure() against brute force in double, and what its sampled histogram is worth.
#include <slimgrad/measure.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <thread>
#include <vector>

#include "kernels/dispatch.h"
#include "kernels/measure/histogram.h"

namespace slimgrad {
namespace {

std::vector<float> lognormal(std::size_t num_values, double log_mean, double log_std,
                             std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<double> normal(log_mean, log_std);
  std::vector<float> values(num_values);
  for (float& x : values)
    x = static_cast<float>(std::exp(normal(engine))) * (engine() & 1 ? 1 : -1);
  return values;
}

// Two passes in double, straight from the definitions in tensor_stats.h.
TensorStats brute_force(const std::vector<float>& values) {
  TensorStats stats;
  double sum_log = 0, deviation = 0;
  for (const float x : values) {
    ++stats.count;
    if (!std::isfinite(x)) {
      ++stats.nonfinite;
      continue;
    }
    const double magnitude = std::abs(static_cast<double>(x));
    stats.max_abs = std::max(stats.max_abs, magnitude);
    stats.mean_abs += magnitude;
    stats.mean_square += magnitude * magnitude;
    if (x == 0) {
      ++stats.zeros;
      continue;
    }
    sum_log += std::log(magnitude);
    ++stats.histogram.counts[LogHistogram::bin_of(x)];
  }
  const auto num_finite = static_cast<double>(std::max<std::uint64_t>(stats.num_finite(), 1));
  const auto num_nonzero = static_cast<double>(std::max<std::uint64_t>(stats.num_nonzero(), 1));
  stats.mean_abs /= num_finite;
  stats.mean_square /= num_finite;
  stats.log_mean = sum_log / num_nonzero;
  for (const float x : values)
    if (std::isfinite(x) && x != 0)
      deviation += std::pow(std::log(std::abs(static_cast<double>(x))) - stats.log_mean, 2);
  stats.log_std = std::sqrt(deviation / num_nonzero);
  return stats;
}

void expect_equal(const TensorStats& a, const TensorStats& b) {
  EXPECT_EQ(a.count, b.count);
  EXPECT_EQ(a.zeros, b.zeros);
  EXPECT_EQ(a.nonfinite, b.nonfinite);
  EXPECT_EQ(a.log_mean, b.log_mean);
  EXPECT_EQ(a.log_std, b.log_std);
  EXPECT_EQ(a.max_abs, b.max_abs);
  EXPECT_EQ(a.mean_abs, b.mean_abs);
  EXPECT_EQ(a.mean_square, b.mean_square);
  EXPECT_EQ(a.histogram.counts, b.histogram.counts);
}

void expect_near(const TensorStats& got, const TensorStats& want) {
  EXPECT_EQ(got.count, want.count);
  EXPECT_EQ(got.zeros, want.zeros);
  EXPECT_EQ(got.nonfinite, want.nonfinite);
  EXPECT_EQ(got.max_abs, want.max_abs);
  EXPECT_NEAR(got.mean_abs, want.mean_abs, 2e-6 * want.mean_abs);
  EXPECT_NEAR(got.mean_square, want.mean_square, 2e-6 * want.mean_square);
  // The bound in measure.h; the root mean square of ln|x| bounds the mean of |ln|x||.
  const double error = 5e-7 + 6e-8 * std::hypot(want.log_mean, want.log_std);
  EXPECT_NEAR(got.log_mean, want.log_mean, error);
  EXPECT_NEAR(got.log_std, want.log_std, 2 * error);
  EXPECT_EQ(got.histogram.counts, want.histogram.counts);
}

class MeasureBySet : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { kernels::select_kernel_set(GetParam()); }
  void TearDown() override { kernels::select_kernel_set("best"); }
};
INSTANTIATE_TEST_SUITE_P(Measure, MeasureBySet, testing::ValuesIn(kernels::kernel_sets()),
                         [](const auto& info) { return info.param; });

TEST_P(MeasureBySet, AgreesWithBruteForceAtChunkBorders) {
  const std::size_t chunk = Measurement::kChunkValues;
  for (const std::size_t n : {std::size_t{0}, std::size_t{1}, std::size_t{4097}, chunk - 1, chunk,
                              chunk + 1, 2 * chunk + 77}) {
    SCOPED_TRACE(n);
    std::vector<float> values = lognormal(n, -9.0, 2.0, n);
    for (std::size_t i = 0; i < n; i += 5) values[i] = i % 2 ? 0.0f : -0.0f;
    for (std::size_t i = 3; i < n; i += 1000)
      values[i] =
          i % 7 ? std::numeric_limits<float>::quiet_NaN() : -std::numeric_limits<float>::infinity();
    for (std::size_t i = 4; i < n; i += 700) values[i] = 1e-41f;
    expect_near(measure(values), brute_force(values));
  }
}

TEST_P(MeasureBySet, NarrowSpreadFarFromOneIsNotLost) {
  for (const double spread : {0.0, 1e-3, 0.1}) {
    SCOPED_TRACE(spread);
    const std::vector<float> values = lognormal(100000, -25.0, spread, 9);
    expect_near(measure(values), brute_force(values));
  }
}

TEST(Measure, NothingToMeasure) {
  const auto infinity = std::numeric_limits<float>::infinity();
  for (const float fill : {0.0f, -0.0f, infinity, std::numeric_limits<float>::quiet_NaN()}) {
    SCOPED_TRACE(fill);
    const std::vector<float> values(70000, fill);
    const TensorStats stats = measure(values);
    expect_equal(stats, brute_force(values));
    EXPECT_EQ(stats.histogram.total(), 0u);
  }
  expect_equal(measure(std::span<const float>()), TensorStats{});
}

TEST(Measure, SixteenBitTypesMeasureTheirValues) {
  std::vector<BFloat16Bits> bfloats;
  std::vector<Float16Bits> halves;
  std::vector<float> bfloat_values, half_values;
  // Every code there is, twice and a bit: three chunks.
  for (std::uint32_t i = 0; i < 2 * 0x10000 + 99; ++i) {
    const auto code = static_cast<std::uint16_t>(i * 40503u);
    bfloats.push_back({code});
    bfloat_values.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(code) << 16));
    halves.push_back({code});
    const int exponent = (code >> 10) & 31, mantissa = code & 1023;
    const double magnitude = exponent == 31  ? (mantissa ? NAN : INFINITY)
                             : exponent == 0 ? std::ldexp(mantissa, -24)
                                             : std::ldexp(1024 + mantissa, exponent - 25);
    half_values.push_back(static_cast<float>(magnitude));
  }
  expect_near(measure(bfloats), brute_force(bfloat_values));
  expect_near(measure(halves), brute_force(half_values));
}

TEST(Measure, OrderAndThreadsDoNotMatter) {
  const std::vector<float> values = lognormal(kFullHistogramValues + 70001, -9.0, 2.0, 4);
  const TensorStats want = measure(values);

  Measurement backwards{std::span<const float>(values)};
  for (std::size_t i = backwards.num_chunks(); i-- > 0;) backwards.run(i, i + 1);
  expect_equal(backwards.finish(), want);

  Measurement threaded{std::span<const float>(values)};
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 3; ++t)
    threads.emplace_back([&, t] {
      const std::size_t n = threaded.num_chunks();
      threaded.run(n * t / 3, n * (t + 1) / 3);
    });
  for (std::thread& thread : threads) thread.join();
  expect_equal(threaded.finish(), want);
}

TEST(SampledHistogram, DoesNotDependOnChunking) {
  const std::vector<float> values = lognormal(10007, 0.0, 2.0, 8);
  const std::span<const float> all(values);
  LogHistogram whole, pieces;
  kernels::count_sampled_magnitudes(all, 1280, whole.counts);
  for (std::size_t i = 0; i < values.size(); i += 640)
    kernels::count_sampled_magnitudes(all.subspan(i, std::min<std::size_t>(640, values.size() - i)),
                                      1280 + i, pieces.counts);
  EXPECT_EQ(whole.counts, pieces.counts);
}

TEST(SampledHistogram, EveryPlaceOfAGroupIsTakenAlike) {
  // 2^17 groups whose eight members have eight different bins: each place should be chosen 2^14
  // times, with a standard deviation of sqrt(2^17 * 7/64) = 120.
  std::vector<float> values(std::size_t{1} << 20);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::ldexp(1.0f, i % 8);
  LogHistogram histogram;
  kernels::count_sampled_magnitudes(std::span<const float>(values), 0, histogram.counts);
  EXPECT_EQ(histogram.total(), values.size() / 8);
  for (int place = 0; place < 8; ++place)
    EXPECT_NEAR(
        static_cast<double>(histogram.counts[LogHistogram::bin_of(std::ldexp(1.0f, place))]),
        1 << 14, 4.5 * 120)
        << place;
}

// The fraction below a threshold, from the sample and from all values: five standard errors of the
// bound 0.5 / sqrt(m) hold for 60 comparisons with a chance of 3e-5 to fail if the claim is true;
// the data are fixed, so that the test either fails always or never.
TEST(SampledHistogram, FractionsAreWithinTheStatedErrorWhateverThePattern) {
  const std::size_t n = kFullHistogramValues + 100003;
  const std::vector<float> base = lognormal(n, -9.0, 1.0, 12);
  for (const std::size_t num_channels : {1, 3, 7, 8, 16, 64}) {
    SCOPED_TRACE(num_channels);
    std::vector<float> values = base;
    for (std::size_t i = 0; i < n; ++i)
      if (num_channels > 1 && i % num_channels == num_channels / 2) values[i] *= 0x1p12f;
    const TensorStats stats = measure(values);
    const TensorStats exact = brute_force(values);
    const auto m = static_cast<double>(stats.histogram.total());
    EXPECT_NEAR(m, static_cast<double>(n) / 8, 1);
    EXPECT_EQ(exact.histogram.total(), n);
    double below = 0, exactly_below = 0, worst = 0;
    for (int bin = 0; bin < LogHistogram::kNumBins; ++bin) {
      below += static_cast<double>(stats.histogram.counts[bin]) / m;
      exactly_below += static_cast<double>(exact.histogram.counts[bin]) / static_cast<double>(n);
      worst = std::max(worst, std::abs(below - exactly_below));
    }
    EXPECT_LT(worst, 5 * 0.5 / std::sqrt(m));
    EXPECT_GT(worst, 0) << "a sample that equals the whole was no sample";
  }
}

}  // namespace
}  // namespace slimgrad
