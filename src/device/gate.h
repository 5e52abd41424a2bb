// A gradient through a gate, wholly on a device: what arrays/decide/gate_pass.cc does, in four
// kernels and a fill of memory, without a look of the host at anything. The arithmetic is the
// CPU's: integer sums of a sample, and rules that both compile (math/decide/*_rules.h).
//
//   GateSee      takes the sample and, for a format, the largest magnitude
//   GateDecide   statistics and treatment; one block (gate_decide.h)
//   GateApply    treats the gradient
//   GateCompare  compares what was with what is, and completes the report; one block
//
// Plan and statistics are the tensors of the gate (formats/gate_fields.h). Their numbers are
// clamped to what kernels can work with: what the host checks when it writes them may have been
// overwritten since, and no value may send a kernel out of its arrays.
#ifndef SLIMGRAD_DEVICE_GATE_H_
#define SLIMGRAD_DEVICE_GATE_H_

#include <cstddef>
#include <cstdint>

#include <slimgrad/seed.h>

#include "device/apply.h"
#include "device/block.h"
#include "device/measure.h"
#include "formats/gate_fields.h"
#include "formats/stats_fields.h"
#include "kernels/measure/sample_sums.h"
#include "kernels/measure/stratified_sample.h"
#include "math/decide/gate_rules.h"
#include "math/decide/pruning_rules.h"

namespace slimgrad::device {

// kernels::SampleSums, as many blocks add to them: counts of 32 bits, squares in two halves.
struct GateSums {
  static constexpr int kOctaves = kernels::SampleSums::kOctaves;

  std::uint32_t counts[LogHistogram::kNumBins];
  std::uint64_t mantissas[kOctaves], low_squares[kOctaves], high_squares[kOctaves];
  std::uint64_t log2;  // modulo 2^64
  std::uint64_t low_log2_square, high_log2_square;
  std::uint32_t num_zeros, num_nonfinite, max_bits, unused;

  // kernels::SampleSums::add().
  SLIMGRAD_HD void add(std::uint32_t bits) {
    if (bits >= kernels::kInfinityBits) return add_to(&num_nonfinite, 1u);
    if (bits == 0) return add_to(&num_zeros, 1u);
    const std::uint32_t octave = bits >> 23;
    const std::uint64_t mantissa = octave == 0 ? bits : (bits & 0x007fffffu) | 0x00800000u;
    const std::int64_t logarithm = kernels::log2_in_fixed_point(bits);
    const auto log2_square = static_cast<std::uint64_t>(logarithm * logarithm);
    add_to(counts + (bits >> LogHistogram::kShift), 1u);
    add_to(mantissas + octave, mantissa);
    add_to(low_squares + octave, mantissa * mantissa & 0xffffffffu);
    add_to(high_squares + octave, mantissa * mantissa >> 32);
    add_to(&log2, static_cast<std::uint64_t>(logarithm));
    add_to(&low_log2_square, log2_square & 0xffffffffu);
    add_to(&high_log2_square, log2_square >> 32);
    raise_to(&max_bits, bits);
  }
};
constexpr kernels::WideInteger halves(std::uint64_t low, std::uint64_t high) {
  return (kernels::WideInteger{high} << 32) + low;
}
constexpr kernels::WideInteger square_of(const GateSums& sums, int octave) {
  return halves(sums.low_squares[octave], sums.high_squares[octave]);
}
constexpr kernels::WideInteger square_of_log2(const GateSums& sums) {
  return halves(sums.low_log2_square, sums.high_log2_square);
}

// What the kernels of one pass tell each other.
struct GateScratch {
  // Zeros at first.
  GateSums sample;
  std::uint32_t max_bits;       // of the whole gradient, where a format is wanted
  std::uint32_t num_nonfinite;  // not used
  std::uint64_t counts[3];      // of the result: zeros, at_threshold, nonfinite
  // Written before they are read.
  std::uint64_t draw;
  double mean_square;  // of the sample
  kernels::LoopTreatment treatment;
  std::uint32_t is_treated;  // else the gradient is left as it is
  Treats treats;
  float before[kMostCompared];  // the values of the sample that are compared
  BinMoments prefix[LogHistogram::kNumBins + 1];
  double terms[LogHistogram::kNumBins];
};
inline constexpr std::size_t kGateScratchZeros = offsetof(GateScratch, draw);
static_assert(sizeof(GateScratch) == 96408 && kGateScratchZeros == 14384);

// The plan, as far as several kernels read it.
struct GatePlan {
  const double* fields;

  // A whole number from `least` to `most`.
  SLIMGRAD_HD std::int64_t whole(int field, std::int64_t least, std::int64_t most) const {
    const double x = fields[field];
    return !(x >= static_cast<double>(least)) ? least
           : x >= static_cast<double>(most)   ? most
                                              : static_cast<std::int64_t>(x);
  }
  SLIMGRAD_HD int small(int field, int most) const {
    return static_cast<int>(whole(field, 0, most));
  }
  SLIMGRAD_HD std::int64_t calls() const { return whole(kCallsField, 0, kMostWhole); }
  SLIMGRAD_HD std::uint64_t draw(std::int64_t stream) const {
    const auto half = [&](int field) {
      return static_cast<std::uint64_t>(whole(field, 0, 0xffffffffll));
    };
    const std::uint64_t seed = half(kSeedLowField) | half(kSeedHighField) << 32;
    return derive_seed(seed, {calls(), stream});
  }
  SLIMGRAD_HD kernels::StratifiedSample sample(std::uint64_t num_values, std::uint64_t draw) const {
    return {num_values, static_cast<std::uint64_t>(whole(kSampleSizeField, 1, kMostWhole)), draw};
  }
  // Whether the gradient is neither too small nor in the warm-up.
  SLIMGRAD_HD bool is_open(std::uint64_t num_values) const {
    return num_values >= static_cast<std::uint64_t>(whole(kMinElementsField, 1, kMostWhole)) &&
           calls() >= whole(kWarmupField, 0, kMostWhole);
  }
  SLIMGRAD_HD int bits() const {
    const int bits = small(kBitsField, 8);
    return bits < 2 ? 0 : bits;
  }

 private:
  static constexpr std::int64_t kMostWhole = std::int64_t{1} << 53;
};

// ---- the sample --------------------------------------------------------------------------------

template <typename T>
struct GateSeeArguments {
  const T* in;
  std::uint64_t size;
  const double* plan;
  GateScratch* scratch;
  std::int64_t stream;
};
static_assert(sizeof(GateSeeArguments<float>) == 40);

template <typename T>
struct GateSee {
  static constexpr int kThreads = 256;
  static constexpr std::uint64_t kMostSampling = 64;  // blocks
  using Arguments = GateSeeArguments<T>;
  struct Shared {
    GateSums sums;
    typename MaxMagnitude<T>::Shared max;
  };

  static SLIMGRAD_HD std::uint64_t num_sampling(std::uint64_t size) {
    const std::uint64_t blocks = (size + 4 * kThreads - 1) / (4 * kThreads);
    return blocks < 1 ? 1 : blocks < kMostSampling ? blocks : kMostSampling;
  }
  static SLIMGRAD_HD std::uint64_t num_blocks(const Arguments& a) {
    const std::uint64_t sampling = num_sampling(a.size);
    const std::uint64_t reading = MaxMagnitude<T>::num_blocks(reading_arguments(a));
    return sampling < reading ? reading : sampling;
  }
  // Where a format is wanted; without one a sample is enough.
  static Traffic traffic(const Arguments& a) { return {a.size * sizeof(T), sizeof(GateSums)}; }

  static SLIMGRAD_HD void run(const Block<kThreads>& block, const Arguments& a, Shared& shared) {
    const GatePlan plan = {a.plan};
    if (block.index < num_sampling(a.size)) add_sample(block, a, plan, shared.sums);
    if (plan.bits() == 0 || !plan.is_open(a.size)) return;
    // The largest values are rare, a sample misses them, and saturation would clip exactly what
    // matters most.
    const auto reading = reading_arguments(a);
    if (block.index < MaxMagnitude<T>::num_blocks(reading))
      MaxMagnitude<T>::run(block, reading, shared.max);
  }

 private:
  static SLIMGRAD_HD MaxMagnitudeArguments<T> reading_arguments(const Arguments& a) {
    return {a.in, a.size, &a.scratch->max_bits, &a.scratch->num_nonfinite};
  }

  static SLIMGRAD_HD void add_sample(const Block<kThreads>& block, const Arguments& a,
                                     const GatePlan& plan, GateSums& sums) {
    const kernels::StratifiedSample sample = plan.sample(a.size, plan.draw(a.stream));
    const std::uint64_t every = comparison_step(sample.size());
    const std::uint64_t stride = num_sampling(a.size) * kThreads;
    block.each([&](int thread) {
      auto* const words = reinterpret_cast<std::uint32_t*>(&sums);
      for (int i = thread; i < static_cast<int>(sizeof(GateSums) / 4); i += kThreads) words[i] = 0;
    });
    block.each([&](int thread) {
      for (std::uint64_t i = block.index * kThreads + static_cast<std::uint64_t>(thread);
           i < sample.size(); i += stride) {
        const T value = a.in[sample.position(i)];
        sums.add(kernels::magnitude_bits(value));
        if (i % every == 0) a.scratch->before[i / every] = kernels::to_float(value);
      }
    });
    GateSums& all = a.scratch->sample;
    block.each([&](int thread) {
      for (int i = thread; i < LogHistogram::kNumBins; i += kThreads)
        if (sums.counts[i] != 0) add_to(all.counts + i, sums.counts[i]);
      for (int i = thread; i < GateSums::kOctaves; i += kThreads) {
        if (sums.mantissas[i] == 0) continue;
        add_to(all.mantissas + i, sums.mantissas[i]);
        add_to(all.low_squares + i, sums.low_squares[i]);
        add_to(all.high_squares + i, sums.high_squares[i]);
      }
      if (thread != 0) return;
      add_to(&all.log2, sums.log2);
      add_to(&all.low_log2_square, sums.low_log2_square);
      add_to(&all.high_log2_square, sums.high_log2_square);
      add_to(&all.num_zeros, sums.num_zeros);
      add_to(&all.num_nonfinite, sums.num_nonfinite);
      raise_to(&all.max_bits, sums.max_bits);
    });
  }
};

// ---- the treatment, as GateDecide left it ------------------------------------------------------

template <typename T>
struct GateApplyArguments {
  const T* in;
  T* out;  // may be `in`
  std::uint64_t size;
  GateScratch* scratch;
};
static_assert(sizeof(GateApplyArguments<float>) == 32);

template <typename T>
struct GateApply {
  using Quantize = Apply<T, Treats::kQuantize>;
  using Prune = Apply<T, Treats::kPrune>;
  using PruneQuantize = Apply<T, Treats::kPruneQuantize>;
  using Drop = Apply<T, Treats::kDrop>;

  static constexpr int kThreads = Quantize::kThreads;
  using Arguments = GateApplyArguments<T>;
  union Shared {
    typename Quantize::Shared rounding;
    typename Prune::Shared pruning;
  };

  static SLIMGRAD_HD std::uint64_t num_blocks(const Arguments& a) {
    return Quantize::num_blocks({a.in, a.out, a.size, nullptr, {}});
  }
  static Traffic traffic(const Arguments& a) { return {a.size * sizeof(T), a.size * sizeof(T)}; }

  static SLIMGRAD_HD void run(const Block<kThreads>& block, const Arguments& a, Shared& shared) {
    if (a.scratch->is_treated == 0) return leave(block, a);
    const ApplyArguments<T> treated = {a.in, a.out, a.size, a.scratch->counts,
                                       a.scratch->treatment};
    switch (a.scratch->treats) {
      case Treats::kQuantize:
        return Quantize::run(block, treated, shared.rounding);
      case Treats::kPrune:
        return Prune::run(block, treated, shared.pruning);
      case Treats::kPruneQuantize:
        return PruneQuantize::run(block, treated, shared.pruning);
      case Treats::kDrop:
        return Drop::run(block, treated, shared.rounding);
    }
  }

 private:
  static SLIMGRAD_HD void leave(const Block<kThreads>& block, const Arguments& a) {
    if (a.in == a.out) return;
    constexpr int kChunk = Quantize::kChunk, kSize = Pack<T>::kSize;
    const bool aligned = is_aligned(a.in) && is_aligned(a.out);
    block.each([&](int thread) {
      for (int i = thread * kSize; i < kChunk; i += kThreads * kSize) {
        const std::uint64_t at = block.index * kChunk + static_cast<std::uint64_t>(i);
        const int valid = values_from(at, a.size, kSize);
        if (valid == 0) break;
        store_some(load_some(a.in + at, valid, aligned), a.out + at, valid, aligned);
      }
    });
  }
};

// ---- the report --------------------------------------------------------------------------------

template <typename T>
struct GateCompareArguments {
  const T* out;
  std::uint64_t size;
  const double* plan;
  double* stats;
  const GateScratch* scratch;
};
static_assert(sizeof(GateCompareArguments<float>) == 40);

// Sums of doubles have the CPU's order, that of the sample: threads make the terms of a piece, then
// one thread adds up each kind.
template <typename T>
struct GateCompare {
  static constexpr int kThreads = 256;
  using Arguments = GateCompareArguments<T>;
  enum Kind { kXX, kXE, kEE, kXESquare, kRelative, kShift, kMagnitude, kKinds };
  struct Shared {
    double terms[kKinds][kThreads];
    double sums[kKinds];
    std::uint32_t num_finite, num_nonzero;
  };

  static SLIMGRAD_HD std::uint64_t num_blocks(const Arguments&) { return 1; }
  // At most.
  static Traffic traffic(const Arguments& a) {
    const std::uint64_t compared = a.size < kMostCompared ? a.size : kMostCompared;
    return {compared * (sizeof(float) + sizeof(T)), 6 * sizeof(double)};
  }

  static SLIMGRAD_HD void run(const Block<kThreads>& block, const Arguments& a, Shared& shared) {
    if (a.scratch->is_treated == 0) return;
    const kernels::StratifiedSample sample = GatePlan{a.plan}.sample(a.size, a.scratch->draw);
    const std::uint64_t every = comparison_step(sample.size());
    const std::uint64_t num_compared = every == 0 ? 0 : (sample.size() + every - 1) / every;
    block.each([&](int thread) {
      if (thread < kKinds) shared.sums[thread] = 0;
      if (thread == 0) shared.num_finite = shared.num_nonzero = 0;
    });
    for (std::uint64_t first = 0; first < num_compared; first += kThreads) {
      block.each([&](int thread) {
        const std::uint64_t i = first + static_cast<std::uint64_t>(thread);
        // Beyond the end, and where x is not finite, there are zeros, which change no sum.
        const ComparedValue value =
            i < num_compared ? ComparedValue(a.scratch->before[i],
                                             kernels::to_float(a.out[sample.position(i * every)]))
                             : ComparedValue(std::numeric_limits<float>::infinity(), 0);
        shared.terms[kXX][thread] = value.xx;
        shared.terms[kXE][thread] = value.xe;
        shared.terms[kEE][thread] = value.ee;
        shared.terms[kXESquare][thread] = value.xe_square;
        shared.terms[kRelative][thread] = value.relative;
        shared.terms[kShift][thread] = value.shift;
        shared.terms[kMagnitude][thread] = value.magnitude;
        if (value.is_finite) add_to(&shared.num_finite, 1u);
        if (value.is_nonzero) add_to(&shared.num_nonzero, 1u);
      });
      block.each([&](int thread) {
        if (thread >= kKinds) return;
        double sum = shared.sums[thread];
        for (int i = 0; i < kThreads; ++i) sum += shared.terms[thread][i];
        shared.sums[thread] = sum;
      });
    }
    block.each([&](int thread) {
      if (thread == 0) write(a, shared);
    });
  }

 private:
  static SLIMGRAD_HD void write(const Arguments& a, const Shared& shared) {
    Comparison compared;
    compared.xx = shared.sums[kXX];
    compared.xe = shared.sums[kXE];
    compared.ee = shared.sums[kEE];
    compared.xe_square = shared.sums[kXESquare];
    compared.relative = shared.sums[kRelative];
    compared.shift = shared.sums[kShift];
    compared.magnitude = shared.sums[kMagnitude];
    compared.num_finite = shared.num_finite;
    compared.num_nonzero = shared.num_nonzero;
    compared.finish(a.scratch->mean_square, SquareRoot());
    const std::uint64_t zeros = a.scratch->counts[0], at_threshold = a.scratch->counts[1],
                        nonfinite = a.scratch->counts[2];
    double* const report = a.stats + kStatsTensorSize;
    report[kSparsityReport] = sparsity_of(zeros, a.size, nonfinite);
    report[kAtThresholdReport] = static_cast<double>(at_threshold) / static_cast<double>(a.size);
    report[kNonfiniteReport] = static_cast<double>(nonfinite);
    report[kCosineReport] = compared.cosine;
    report[kRelativeErrorReport] = compared.relative_error;
    report[kBiasReport] = compared.bias;
  }
};

}  // namespace slimgrad::device

#endif  // SLIMGRAD_DEVICE_GATE_H_
