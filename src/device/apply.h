// Quantizing, pruning, both and top-k, value by value: kernels/apply/loop_treatment.h has the
// rules.
#ifndef SLIMGRAD_DEVICE_APPLY_H_
#define SLIMGRAD_DEVICE_APPLY_H_

#include <cstddef>
#include <cstdint>

#include "device/block.h"
#include "device/draws.h"
#include "kernels/apply/loop_treatment.h"
#include "kernels/half_float.h"

namespace slimgrad::device {

// What is done, known when a kernel is compiled: one that could do everything takes more registers.
enum class Treats { kQuantize, kPrune, kPruneQuantize, kDrop };

// Which kernel does what a treatment asks for: `treatment` is that of the array, with its
// threshold, also where values below it are dropped. A treatment that does nothing is a quantizing
// one without a grid, which copies and counts.
constexpr Treats treats_of(const kernels::LoopTreatment& treatment, bool drops) {
  if (drops) return Treats::kDrop;
  if (!treatment.prunes()) return Treats::kQuantize;
  return treatment.quantizes ? Treats::kPruneQuantize : Treats::kPrune;
}

template <typename T>
struct ApplyArguments {
  const T* in;
  T* out;  // may be `in`
  std::uint64_t size;
  std::uint64_t* counts;  // zeros, at_threshold, nonfinite: added to; or null
  kernels::LoopTreatment treatment;
};
static_assert(sizeof(kernels::LoopTreatment) == 56 && sizeof(ApplyArguments<float>) == 88);
static_assert(offsetof(ApplyArguments<float>, treatment) == 32);

// A block takes a chunk. First its threads make the chunk's draws, each Philox block once; then
// they go over it in packs of 16 bytes.
template <typename T, Treats kTreats>
struct Apply {
  static constexpr int kThreads = 128;
  static constexpr int kChunk = 4096;
  static constexpr bool kPrunes = kTreats == Treats::kPrune || kTreats == Treats::kPruneQuantize;
  using Arguments = ApplyArguments<T>;
  using Draws = ChunkDraws<kPrunes ? Stream::kPrune : Stream::kRound, kChunk>;
  using Shared = Draws;

  static SLIMGRAD_HD std::uint64_t num_blocks(const Arguments& a) {
    return (a.size + kChunk - 1) / kChunk;
  }
  static Traffic traffic(const Arguments& a) { return {a.size * sizeof(T), a.size * sizeof(T)}; }

  static SLIMGRAD_HD void run(const Block<kThreads>& block, const Arguments& a, Shared& draws) {
    const kernels::LoopTreatment treatment = a.treatment;
    const RandomStream random(treatment.seed, Draws::kStream);
    const Rule rule(treatment);
    const std::uint64_t start = block.index * kChunk;
    const bool aligned = is_aligned(a.in) && is_aligned(a.out);
    if (kPrunes || (treatment.quantizes && treatment.grid.draws()))
      draws.fill(block, random, start);

    typename Block<kThreads>::template PerThread<ApplyCounts> counts;
    block.each([&](int thread) {
      counts[thread] = {};
      constexpr int kSize = Pack<T>::kSize;
      for (int i = thread * kSize; i < kChunk; i += kThreads * kSize) {
        const std::uint64_t at = start + static_cast<std::uint64_t>(i);
        const int valid = values_from(at, a.size, kSize);
        if (valid == 0) break;
        Pack<T> pack = load_some(a.in + at, valid, aligned);
        SLIMGRAD_UNROLL
        for (int j = 0; j < kSize; ++j) {
          const DrawnStream drawn = {random, draws.at(random, i + j)};
          const std::uint32_t x = kernels::float_bits(pack.values[j]);
          if (j < valid)
            pack.values[j] = kernels::from_float_bits<T>(
                rule.apply(drawn, x, at + static_cast<std::uint64_t>(j), counts[thread]));
        }
        store_some(pack, a.out + at, valid, aligned);
      }
    });
    if (a.counts != nullptr) add_counts(block, counts, a.counts);
  }

 private:
  // kernels::ValueRule for what is known here.
  struct Rule {
    const kernels::LoopTreatment& treatment;
    float inverse_threshold;
    kernels::Neighbours reached;

    SLIMGRAD_HD explicit Rule(const kernels::LoopTreatment& of)
        : treatment(of),
          inverse_threshold(kPrunes ? kernels::inverse_of(of.threshold) : 0),
          reached(kTreats == Treats::kPruneQuantize ? kernels::neighbours(of.threshold, of.grid)
                                                    : kernels::Neighbours{}) {}

    SLIMGRAD_HD std::uint32_t apply(const DrawnStream& random, std::uint32_t x, std::uint64_t index,
                                    ApplyCounts& counts) const {
      if constexpr (kTreats == Treats::kDrop) x = kernels::drop_value(x, treatment.threshold);
      counts.nonfinite += (x & ~kernels::kSignMask) >= kernels::kInfinityBits;
      if constexpr (kTreats == Treats::kPruneQuantize)
        x = kernels::prune_quantize_value(x, treatment.threshold, inverse_threshold, reached,
                                          treatment.grid, random, index, counts.at_threshold);
      else if constexpr (kTreats == Treats::kPrune)
        x = kernels::prune_value(x, treatment.threshold, inverse_threshold, random, index,
                                 counts.at_threshold);
      else if (treatment.quantizes)
        x = kernels::quantize_value(x, treatment.grid, random, index);
      counts.zeros += (x & ~kernels::kSignMask) == 0;
      return x;
    }
  };

  template <class Counts>
  static SLIMGRAD_HD void add_counts(const Block<kThreads>& block, const Counts& counts,
                                     std::uint64_t* sums) {
    // A thread has at most 32 of each, half a warp 512: three counts in one word.
    static_assert(kChunk / kThreads == 32);
    typename Block<kThreads>::template PerThread<std::uint32_t> joined;
    block.each([&](int thread) {
      joined[thread] =
          static_cast<std::uint32_t>(counts[thread].zeros | counts[thread].at_threshold << 10 |
                                     counts[thread].nonfinite << 20);
    });
    block.reduce(joined, kWarp / 2, [](std::uint32_t x, std::uint32_t y) { return x + y; });
    block.each([&](int thread) {
      const std::uint32_t word = joined[thread];
      if (thread % (kWarp / 2) != 0) return;
      if (word & 0x3ff) add_to(sums, std::uint64_t{word & 0x3ff});
      if (word >> 10 & 0x3ff) add_to(sums + 1, std::uint64_t{word >> 10 & 0x3ff});
      if (word >> 20) add_to(sums + 2, std::uint64_t{word >> 20});
    });
  }
};

}  // namespace slimgrad::device

#endif  // SLIMGRAD_DEVICE_APPLY_H_
