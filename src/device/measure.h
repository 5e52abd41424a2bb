// The statistics of measure() (slimgrad/measure.h) on devices, to the bit: kernels/measure has the
// rules, chunk_sums.h the order in which numbers are added. And the largest magnitude of an array.
#ifndef SLIMGRAD_DEVICE_MEASURE_H_
#define SLIMGRAD_DEVICE_MEASURE_H_

#include <cstddef>
#include <cstdint>

#include <slimgrad/tensor_stats.h>

#include "device/block.h"
#include "formats/stats_fields.h"
#include "kernels/magnitude.h"
#include "kernels/measure/chunk_sums.h"
#include "kernels/measure/histogram.h"

namespace slimgrad::device {

template <typename T>
struct MeasureChunksArguments {
  const T* in;
  std::uint64_t size;
  kernels::ChunkSums* chunks;  // one for each block of the grid
  std::uint64_t* histogram;    // LogHistogram::kNumBins counts, added to
  std::uint32_t is_sampled;    // whether the histogram sees an eighth of the values
};
static_assert(sizeof(kernels::ChunkSums) == 56 && sizeof(MeasureChunksArguments<float>) == 40);

// A block of the grid takes a chunk. It is cut into blocks of 512 values, whose 16 lanes are added
// up by a thread each, 16 blocks side by side; 16 of the threads then join the blocks, in their
// order. They also do what is rare: all up to the first block that has values, which gives the
// pivot, blocks that are not easy, and the end of the array.
template <typename T>
struct MeasureChunks {
  static constexpr int kThreads = 256;
  static constexpr std::uint64_t kChunk = std::uint64_t{1} << 16;  // Measurement::kChunkValues
  static constexpr int kLanes = static_cast<int>(kernels::sums::kLanes);
  static constexpr int kSideBySide = kThreads / kLanes;
  static constexpr int kRows = static_cast<int>(kernels::sums::kBlockRows);
  static constexpr std::uint32_t kBlockValues = kernels::sums::kBlockValues;
  using Arguments = MeasureChunksArguments<T>;
  struct Shared {
    kernels::sums::LaneSums lanes;
    kernels::sums::EasySums easy[kSideBySide][kLanes];
    std::uint32_t counts[LogHistogram::kNumBins];
    std::uint32_t num_zeros, num_nonfinite, num_easy, max_bits;
  };

  static SLIMGRAD_HD std::uint64_t num_blocks(const Arguments& a) {
    return (a.size + kChunk - 1) / kChunk;
  }
  static Traffic traffic(const Arguments& a) {
    return {a.size * sizeof(T), (a.size + kChunk - 1) / kChunk * sizeof(kernels::ChunkSums)};
  }

  static SLIMGRAD_HD void run(const Block<kThreads>& block, const Arguments& a, Shared& shared) {
    const std::uint64_t start = block.index * kChunk;
    const Chunk chunk = {
        a.in + start, start,
        static_cast<std::uint32_t>(a.size - start < kChunk ? a.size - start : kChunk),
        a.is_sampled != 0};
    const std::uint32_t num_blocks = chunk.size / kBlockValues;
    block.each([&](int thread) {
      for (int i = thread; i < LogHistogram::kNumBins; i += kThreads) shared.counts[i] = 0;
      if (thread == 0) {
        shared.lanes = {};
        shared.num_zeros = shared.num_nonfinite = shared.num_easy = shared.max_bits = 0;
      }
    });
    std::uint32_t first = 0;
    for (; first < num_blocks && shared.lanes.pivot == 0; ++first) {
      block.each([&](int thread) {
        if (thread < kLanes) add_rows(chunk, first * kBlockValues, kBlockValues, thread, shared);
      });
      block.each([&](int thread) {
        if (thread != 0) return;
        take_counts(shared);
        shared.lanes.pivot = kernels::sums::pivot_of(shared.lanes, (first + 1) * kBlockValues);
      });
    }
    for (; first < num_blocks; first += kSideBySide) add_blocks(block, chunk, first, shared);
    block.each([&](int thread) {
      const std::uint32_t done = num_blocks * kBlockValues;
      if (thread < kLanes) add_rows(chunk, done, chunk.size - done, thread, shared);
    });
    block.each([&](int thread) {
      for (int i = thread; i < LogHistogram::kNumBins; i += kThreads)
        if (shared.counts[i] != 0) add_to(a.histogram + i, std::uint64_t{shared.counts[i]});
      if (thread != 0) return;
      take_counts(shared);
      a.chunks[block.index] = kernels::sums::joined(shared.lanes);
    });
  }

 private:
  struct Chunk {
    const T* values;
    std::uint64_t first_index;
    std::uint32_t size;
    bool is_sampled;

    SLIMGRAD_HD std::uint32_t bits(std::uint32_t i) const {
      return kernels::magnitude_bits(values[i]);
    }
    // Counts a value into its bin, if the histogram sees it.
    SLIMGRAD_HD void count(std::uint32_t i, std::uint32_t bits, Shared& shared) const {
      if (bits == 0 || bits >= kernels::kInfinityBits) return;
      if (is_sampled) {
        constexpr std::uint32_t kGroup = kernels::kSampleGroup;
        const std::uint64_t choices =
            kernels::sample_choices((first_index + i) / kernels::kSampleBlock);
        const std::uint32_t group = i % kernels::kSampleBlock / kGroup;
        if ((choices >> 3 * group) % kGroup != i % kGroup) return;
      }
      add_to(shared.counts + (bits >> LogHistogram::kShift), 1u);
    }
  };

  // A lane of add_rows() in kernels/measure: `num_values` from `begin` on, in double.
  static SLIMGRAD_HD void add_rows(const Chunk& chunk, std::uint32_t begin,
                                   std::uint32_t num_values, int lane, Shared& shared) {
    std::uint32_t num_zeros = 0, num_nonfinite = 0, max_bits = 0;
    for (auto i = static_cast<std::uint32_t>(lane); i < num_values; i += kLanes) {
      const std::uint32_t bits = chunk.bits(begin + i);
      chunk.count(begin + i, bits, shared);
      add_value(bits, static_cast<std::size_t>(lane), shared.lanes, num_zeros, num_nonfinite,
                max_bits);
    }
    add_to(&shared.num_zeros, num_zeros);
    add_to(&shared.num_nonfinite, num_nonfinite);
    raise_to(&shared.max_bits, max_bits);
  }
  static SLIMGRAD_HD void add_value(std::uint32_t bits, std::size_t lane,
                                    kernels::sums::LaneSums& lanes, std::uint32_t& num_zeros,
                                    std::uint32_t& num_nonfinite, std::uint32_t& max_bits) {
    if (bits >= kernels::kInfinityBits) {
      ++num_nonfinite;
    } else if (bits == 0) {
      ++num_zeros;
    } else {
      lanes.add(lane, bits);
      max_bits = bits > max_bits ? bits : max_bits;
    }
  }

  // Blocks first to first + kSideBySide - 1, as far as the chunk has them whole.
  static SLIMGRAD_HD void add_blocks(const Block<kThreads>& block, const Chunk& chunk,
                                     std::uint32_t first, Shared& shared) {
    const std::uint32_t left = chunk.size / kBlockValues - first;
    const int count = left < kSideBySide ? static_cast<int>(left) : kSideBySide;
    block.each([&](int thread) {
      const int lane = thread % kLanes, of = thread / kLanes;
      if (of >= count) return;
      const std::uint32_t begin = (first + static_cast<std::uint32_t>(of)) * kBlockValues;
      kernels::sums::EasySums sums;
      for (int row = 0; row < kRows; ++row) {
        const std::uint32_t i = begin + static_cast<std::uint32_t>(row * kLanes + lane);
        const std::uint32_t bits = chunk.bits(i);
        chunk.count(i, bits, shared);
        sums.add(bits, shared.lanes.pivot);
      }
      shared.easy[of][lane] = sums;
    });
    block.each([&](int lane) {
      if (lane >= kLanes) return;
      std::uint32_t num_zeros = 0, num_nonfinite = 0, max_bits = 0, num_easy = 0;
      for (int of = 0; of < count; ++of) {
        std::uint32_t largest = 0, smallest = kernels::kInfinityBits;
        for (int k = 0; k < kLanes; ++k) {
          const kernels::sums::EasySums& sums = shared.easy[of][k];
          largest = sums.largest > largest ? sums.largest : largest;
          smallest = sums.smallest < smallest ? sums.smallest : smallest;
        }
        const auto at = static_cast<std::size_t>(lane);
        if (kernels::sums::is_easy(largest, smallest)) {
          const kernels::sums::EasySums& sums = shared.easy[of][lane];
          shared.lanes.add(at, sums);
          num_zeros += sums.num_zeros;
          num_easy += static_cast<std::uint32_t>(kRows) - sums.num_zeros;
          max_bits = sums.largest > max_bits ? sums.largest : max_bits;
          continue;
        }
        const std::uint32_t begin = (first + static_cast<std::uint32_t>(of)) * kBlockValues;
        for (int row = 0; row < kRows; ++row)
          add_value(chunk.bits(begin + static_cast<std::uint32_t>(row * kLanes + lane)), at,
                    shared.lanes, num_zeros, num_nonfinite, max_bits);
      }
      add_to(&shared.num_zeros, num_zeros);
      add_to(&shared.num_nonfinite, num_nonfinite);
      add_to(&shared.num_easy, num_easy);
      raise_to(&shared.max_bits, max_bits);
    });
  }

  static SLIMGRAD_HD void take_counts(Shared& shared) {
    shared.lanes.num_zeros = shared.num_zeros;
    shared.lanes.num_nonfinite = shared.num_nonfinite;
    shared.lanes.num_easy = shared.num_easy;
    shared.lanes.max_bits = shared.max_bits;
  }
};

// ---- joining the chunks ------------------------------------------------------------------------

struct FinishMeasureArguments {
  const kernels::ChunkSums* chunks;  // of the array, in order
  const std::uint64_t* histogram;
  std::uint64_t size;  // of the array, of any type
  double* fields;      // kStatsTensorSize numbers: formats/stats_fields.h
};
static_assert(sizeof(FinishMeasureArguments) == 32);

// One block. A thread joins the chunks, which have an order, and the others copy the histogram.
struct FinishMeasure {
  static constexpr int kThreads = 256;
  using Arguments = FinishMeasureArguments;
  struct Shared {};
  static SLIMGRAD_HD std::uint64_t num_blocks(const Arguments&) { return 1; }
  static Traffic traffic(const Arguments& a) {
    constexpr std::uint64_t kChunk = MeasureChunks<float>::kChunk;
    const std::uint64_t num_chunks = (a.size + kChunk - 1) / kChunk;
    return {
        num_chunks * sizeof(kernels::ChunkSums) + LogHistogram::kNumBins * sizeof(std::uint64_t),
        (kStatsFields + LogHistogram::kNumBins) * sizeof(double)};
  }

  static SLIMGRAD_HD void run(const Block<kThreads>& block, const Arguments& a, Shared&) {
    block.each([&](int thread) {
      for (int i = thread; i < LogHistogram::kNumBins; i += kThreads)
        a.fields[kStatsFields + i] = static_cast<double>(a.histogram[i]);
      if (thread != kThreads - 1) return;
      kernels::sums::ArraySums sums;
      constexpr std::uint64_t kChunk = MeasureChunks<float>::kChunk;
      for (std::uint64_t i = 0, left = a.size; left > 0; ++i) {
        const std::uint64_t num_values = left < kChunk ? left : kChunk;
        sums.join(a.chunks[i], num_values);
        left -= num_values;
      }
      StatsNumbers stats;
      sums.finish(a.size, SquareRoot(), stats);
      write_numbers(stats, a.fields);
    });
  }
};

// ---- the largest magnitude ---------------------------------------------------------------------

template <typename T>
struct MaxMagnitudeArguments {
  const T* in;
  std::uint64_t size;
  std::uint32_t* max_bits;       // of the finite ones (kernels/magnitude.h): raised
  std::uint32_t* num_nonfinite;  // added to
};
static_assert(sizeof(MaxMagnitudeArguments<float>) == 32);

template <typename T>
struct MaxMagnitude {
  static constexpr int kThreads = 256;
  static constexpr int kPacks = 8;  // of a thread
  using Arguments = MaxMagnitudeArguments<T>;
  struct Shared {
    std::uint32_t max_bits, num_nonfinite;
  };
  static SLIMGRAD_HD std::uint64_t num_blocks(const Arguments& a) {
    constexpr std::uint64_t kChunk = std::uint64_t{kThreads} * kPacks * Pack<T>::kSize;
    return (a.size + kChunk - 1) / kChunk;
  }
  static Traffic traffic(const Arguments& a) { return {a.size * sizeof(T), 0}; }

  static SLIMGRAD_HD void run(const Block<kThreads>& block, const Arguments& a, Shared& shared) {
    block.each([&](int thread) {
      if (thread == 0) shared.max_bits = shared.num_nonfinite = 0;
    });
    const bool aligned = is_aligned(a.in);
    block.each([&](int thread) {
      constexpr int kSize = Pack<T>::kSize;
      std::uint32_t max_bits = 0, num_nonfinite = 0;
      SLIMGRAD_UNROLL
      for (int i = 0; i < kPacks; ++i) {
        const std::uint64_t pack_index =
            (block.index * kPacks + static_cast<std::uint64_t>(i)) * kThreads +
            static_cast<std::uint64_t>(thread);
        const std::uint64_t at = pack_index * kSize;
        const int valid = values_from(at, a.size, kSize);
        if (valid == 0) break;
        const Pack<T> pack = load_some(a.in + at, valid, aligned);  // zeros behind the end
        SLIMGRAD_UNROLL
        for (int j = 0; j < kSize; ++j) {
          const std::uint32_t bits = kernels::magnitude_bits(pack.values[j]);
          const bool is_finite = bits < kernels::kInfinityBits;
          num_nonfinite += is_finite ? 0 : 1;
          max_bits = is_finite && bits > max_bits ? bits : max_bits;
        }
      }
      if (max_bits != 0) raise_to(&shared.max_bits, max_bits);
      if (num_nonfinite != 0) add_to(&shared.num_nonfinite, num_nonfinite);
    });
    block.each([&](int thread) {
      if (thread != 0) return;
      if (shared.max_bits != 0) raise_to(a.max_bits, shared.max_bits);
      if (shared.num_nonfinite != 0) add_to(a.num_nonfinite, shared.num_nonfinite);
    });
  }
};

}  // namespace slimgrad::device

#endif  // SLIMGRAD_DEVICE_MEASURE_H_
