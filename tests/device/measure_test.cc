// The statistics of an array on devices: those of the CPU, to the bit.
#include "device/measure.h"

#include <gtest/gtest.h>

#include <slimgrad/measure.h>

#include "device/emulate.h"
#include "kernels/measure/magnitude_range.h"

namespace slimgrad::device {
namespace {

static_assert(MeasureChunks<float>::kChunk == Measurement::kChunkValues);

std::vector<double> fields_of(const TensorStats& stats) {
  std::vector<double> fields(kStatsTensorSize);
  write_numbers(stats, fields.data());
  for (int bin = 0; bin < LogHistogram::kNumBins; ++bin)
    fields[static_cast<std::size_t>(kStatsFields + bin)] =
        static_cast<double>(stats.histogram.counts[static_cast<std::size_t>(bin)]);
  return fields;
}

template <typename T>
std::vector<double> measured(const Array<T>& values, std::uint32_t shuffle) {
  std::vector<std::uint64_t> histogram(LogHistogram::kNumBins);
  const bool is_sampled = values.size() > kFullHistogramValues;
  MeasureChunksArguments<T> chunks = {values.data(), values.size(), nullptr, histogram.data(),
                                      is_sampled ? 1u : 0u};
  std::vector<kernels::ChunkSums> sums(MeasureChunks<T>::num_blocks(chunks));
  chunks.chunks = sums.data();
  launch<MeasureChunks<T>>(chunks, shuffle);
  std::vector<double> fields(kStatsTensorSize);
  launch<FinishMeasure>({sums.data(), histogram.data(), values.size(), fields.data()}, shuffle);
  return fields;
}

template <typename T>
class DeviceMeasure : public ::testing::Test {};
TYPED_TEST_SUITE(DeviceMeasure, ValueTypes);

TYPED_TEST(DeviceMeasure, HasTheStatisticsOfTheCpu) {
  using T = TypeParam;
  for_all_cases([](std::size_t size, std::size_t shift, Kind kind) {
    const Array<T> values = make_values<T>(size, shift, kind, 1);
    ASSERT_TRUE(same_bits(fields_of(measure(values.span())), measured(values, size % 3)))
        << describe<T>(size, shift, kind);
  });
}

TYPED_TEST(DeviceMeasure, HasTheStatisticsOfTheCpuForManyChunks) {
  using T = TypeParam;
  for (const Kind kind : kKinds) {
    const std::size_t size = 2 * Measurement::kChunkValues + 12345;
    const Array<T> values = make_values<T>(size, 1, kind, 2);
    ASSERT_TRUE(same_bits(fields_of(measure(values.span())), measured(values, 5)))
        << describe<T>(size, 1, kind);
  }
}

// Blocks in which the pivot is found late, or which are not easy: zeros, subnormals, Inf and NaN in
// front, in the middle and at the end of chunks.
TYPED_TEST(DeviceMeasure, HasTheStatisticsOfTheCpuForMixedBlocks) {
  using T = TypeParam;
  const std::size_t block = kernels::sums::kBlockValues, size = 80 * block + 100;
  std::mt19937 engine(7);
  for (int repeat = 0; repeat < 20; ++repeat) {
    Array<T> values(size, 0);
    for (std::size_t first = 0; first < size; first += block) {
      const std::size_t count = std::min(block, size - first);
      const Kind kind = first < 3 * block && repeat % 2 == 0 ? Kind::kZeros : kKinds[engine() % 7];
      const Array<T> some = make_values<T>(count, 0, kind, engine());
      std::copy(some.data(), some.data() + count, values.data() + first);
    }
    ASSERT_TRUE(same_bits(fields_of(measure(std::as_const(values).span())), measured(values, 3)))
        << repeat;
  }
}

TYPED_TEST(DeviceMeasure, SamplesTheHistogramOfALargeArrayAsTheCpu) {
  using T = TypeParam;
  const Array<T> values = make_values<T>(kFullHistogramValues + 5001, 0, Kind::kSomeBad, 4);
  EXPECT_TRUE(same_bits(fields_of(measure(values.span())), measured(values, 0)));
}

TYPED_TEST(DeviceMeasure, OfNothingIsZero) {
  EXPECT_TRUE(same_bits(fields_of({}), measured(Array<TypeParam>(0, 0), 0)));
}

TYPED_TEST(DeviceMeasure, FindsTheLargestMagnitude) {
  using T = TypeParam;
  for_all_cases([](std::size_t size, std::size_t shift, Kind kind) {
    const Array<T> values = make_values<T>(size, shift, kind, 5);
    const kernels::MagnitudeRange expected = kernels::magnitude_range(values.span());
    std::uint32_t max_bits = 0, num_nonfinite = 0;
    launch<MaxMagnitude<T>>({values.data(), size, &max_bits, &num_nonfinite}, size % 5);
    ASSERT_EQ(expected.largest, max_bits) << describe<T>(size, shift, kind);
    ASSERT_EQ(expected.nonfinite, num_nonfinite) << describe<T>(size, shift, kind);
  });
}

}  // namespace
}  // namespace slimgrad::device
