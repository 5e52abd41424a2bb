#include "kernels/measure/histogram.h"

#include <algorithm>

#include "kernels/magnitude.h"

namespace slimgrad::kernels {
namespace {

constexpr std::size_t kGroup = kSampleGroup;
constexpr int kFirstNonfiniteBin = kInfinityBits >> LogHistogram::kShift;

// Two tables, used alternately: neighbours often fall into the same bin, and an increment that
// reads what the one before has just written waits for it. 32-bit counters keep both in half of a
// 32 KiB cache.
class TwinTables {
 public:
  void add(int table, std::uint32_t magnitude) {
    // Zero would fall into bin 0, with the smallest subnormals. Inf and NaN have bins of their own,
    // which are left behind in the end.
    counts_[table][magnitude >> LogHistogram::kShift] += magnitude != 0;
  }
  void add_to(BinCounts counts) const {
    for (int bin = 0; bin < kFirstNonfiniteBin; ++bin)
      counts[bin] += std::uint64_t{counts_[0][bin]} + counts_[1][bin];
  }

 private:
  std::uint32_t counts_[2][LogHistogram::kNumBins] = {};
};

template <typename T>
void count_all(std::span<const T> values, BinCounts counts) {
  TwinTables tables;
  std::size_t i = 0;
  for (; i + 2 <= values.size(); i += 2) {
    tables.add(0, magnitude_bits(values[i]));
    tables.add(1, magnitude_bits(values[i + 1]));
  }
  if (i < values.size()) tables.add(0, magnitude_bits(values[i]));
  tables.add_to(counts);
}

template <typename T>
void count_sample(std::span<const T> values, std::uint64_t first_index, BinCounts counts) {
  TwinTables tables;
  std::size_t start = 0;
  for (; start + kSampleBlock <= values.size(); start += kSampleBlock) {
    const T* group = values.data() + start;
    std::uint64_t choice = sample_choices((first_index + start) / kSampleBlock);
    for (std::size_t g = 0; g < kSampleBlock / kGroup; g += 2, group += 2 * kGroup, choice >>= 6) {
      tables.add(0, magnitude_bits(group[choice % kGroup]));
      tables.add(1, magnitude_bits(group[kGroup + (choice >> 3) % kGroup]));
    }
  }
  // The last block may be short. A choice beyond the end is no value: every value keeps its
  // probability of one eighth.
  std::uint64_t choice = sample_choices((first_index + start) / kSampleBlock);
  for (std::size_t i = start; i < values.size(); i += kGroup, choice >>= 3) {
    const std::size_t chosen = i + choice % kGroup;
    if (chosen < values.size()) tables.add(0, magnitude_bits(values[chosen]));
  }
  tables.add_to(counts);
}

}  // namespace

void count_magnitudes(std::span<const float> values, BinCounts counts) noexcept {
  count_all(values, counts);
}
void count_magnitudes(std::span<const BFloat16Bits> values, BinCounts counts) noexcept {
  count_all(values, counts);
}
void count_magnitudes(std::span<const Float16Bits> values, BinCounts counts) noexcept {
  count_all(values, counts);
}

void count_sampled_magnitudes(std::span<const float> values, std::uint64_t first_index,
                              BinCounts counts) noexcept {
  count_sample(values, first_index, counts);
}
void count_sampled_magnitudes(std::span<const BFloat16Bits> values, std::uint64_t first_index,
                              BinCounts counts) noexcept {
  count_sample(values, first_index, counts);
}
void count_sampled_magnitudes(std::span<const Float16Bits> values, std::uint64_t first_index,
                              BinCounts counts) noexcept {
  count_sample(values, first_index, counts);
}

}  // namespace slimgrad::kernels
