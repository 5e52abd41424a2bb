#include "arrays/coding/rate_choice.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>

#include "arrays/coding/payload_layout.h"
#include "arrays/coding/symbol_block.h"
#include "base/portable_math.h"
#include "formats/value_types.h"
#include "kernels/measure/signed_bins.h"
#include "kernels/measure/stratified_sample.h"

namespace slimgrad {
namespace {

// The sample of a tensor, in runs of a cache line, and the least of a block. The entropy of m
// values has a standard error of sd(log2 P) / sqrt(m), some 0.007 bits here, and is too small by
// levels / (2 m ln 2), 0.02 bits at 8 bits a value in a small sample of a block.
constexpr std::uint64_t kSample = 32768, kLeastOfBlock = 2048, kRun = 16;

// The size is as wanted if it is wrong by at most this share; below kManyValues the other one.
constexpr double kTolerance = 0.015, kSmallTolerance = 0.035;
constexpr std::uint64_t kManyValues = std::uint64_t{1} << 18;

// How often a tensor is coded at most, beside once more with the best of these steps.
constexpr std::size_t kMostTries = 4;

// A step beyond the largest magnitude is pruning, whose noise grows with it: this much at most.
constexpr double kMostBeyondLargest = 16;

double magnitude_of_bin(std::size_t bin) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bin << kernels::kSignedBinShift));
}

// The bins that have values, in ascending order. The first one, below the smallest normal numbers,
// counts as zeros, and so does the one of -0.
BinnedLaw law_of(const kernels::SignedBinCounts& counts) {
  constexpr std::size_t kBinsOfSign = kernels::kNumSignedBins / 2;
  const auto count = [&](std::size_t bin) {
    return static_cast<double>(counts[0][bin]) + static_cast<double>(counts[1][bin]);
  };
  BinnedLaw law;
  law.zeros = count(0) + count(kBinsOfSign);
  for (std::size_t bin = 1; bin < kBinsOfSign; ++bin) {
    const auto put = [&](std::size_t of, std::vector<MagnitudeBin>& bins) {
      if (counts[0][of] + counts[1][of] == 0) return;
      bins.push_back({magnitude_of_bin(bin), magnitude_of_bin(bin + 1), count(of)});
    };
    put(bin, law.positive);
    put(kBinsOfSign + bin, law.negative);
  }
  return law;
}

template <typename T>
void count_sample(std::span<const T> values, std::uint64_t wanted, std::uint64_t key,
                  kernels::SignedBinCounts& counts) {
  if (values.size() < 2 * wanted) return kernels::count_signed_bins(values, counts);
  const kernels::StratifiedSample runs(values.size() / kRun, wanted / kRun, key);
  runs.visit(0, runs.size(), [&](std::uint64_t, std::uint64_t run) {
    kernels::count_signed_bins(values.subspan(run * kRun, kRun), counts);
  });
}

// What a table of frequencies takes, in bits: of each symbol with a frequency its width, as a step
// from the one before, and the bits below the highest. `share(i)` is that of symbol i; `step_bits`
// what a step takes: those from level to level are short, those from mask to mask longer.
constexpr double kLevelStepBits = 1.9;
template <typename Share>
double table_bits(int num_symbols, double step_bits, const Share& share) {
  double bits = 25;
  for (int i = 0; i < num_symbols; ++i) {
    const double frequency = kRansTotal * share(i);
    if (frequency >= 0.25) bits += step_bits + (frequency > 1 ? portable_log2(frequency) : 0.0);
  }
  return bits;
}

// The states of a stream, of which half of 16 bits each tell something.
constexpr double kStreamBytes = 128 - 32;

// The mask bytes of a block whose zeros are taken out (symbol_block.h): eight positions in a byte.
double mask_table_bits(double zero_share) {
  std::array<double, 9> share_of_ones;  // of one byte with so many ones
  for (int ones = 0; ones <= 8; ++ones) {
    double share = 1;
    for (int i = 0; i < 8; ++i) share *= i < ones ? 1 - zero_share : zero_share;
    share_of_ones[static_cast<std::size_t>(ones)] = share;
  }
  // From one byte to the next the number of ones changes by one, on average, and the width by as
  // many log2(zero / one).
  const double step_bits = 0.8 + 2 * portable_log2(zero_share / (1 - zero_share));
  return table_bits(256, step_bits, [&](int byte) {
    return share_of_ones[static_cast<std::size_t>(std::popcount(static_cast<unsigned>(byte)))];
  });
}

// A block with these shares of symbols, which add up to 1.
RateChoice::Size block_size(const SymbolMasses& shares, double num_values) {
  const double coded = num_values * level_bits(shares) / 8;
  const double zero = shares[kOpenCentre];
  const auto share = [&](int symbol) { return shares[static_cast<std::size_t>(symbol)]; };
  constexpr double kFixed = 4 + 1;  // the size of the symbols, the method
  if (zero >= 1) return {0, kFixed + 1};
  if (zero <= 0.6) {  // pays_as_mask() in symbol_block_encode.cc
    const double streams = coded < kPairedBytes ? 1 : 2;
    return {coded, kFixed + streams * kStreamBytes +
                       table_bits(kNumOpenSymbols, kLevelStepBits, share) / 8};
  }
  const auto share_of_others = [&](int symbol) {
    return symbol == kOpenCentre ? 0.0 : share(symbol) / (1 - zero);
  };
  return {coded, kFixed + 2 * kStreamBytes + 8 +
                     (mask_table_bits(zero) +
                      table_bits(kNumOpenSymbols, kLevelStepBits, share_of_others)) /
                         8};
}

}  // namespace

RateChoice::RateChoice(const TensorView& tensor, const PayloadInfo& info, Rounding rounding,
                       double largest, double fixed_bytes, double model_scale)
    : rounding_(rounding),
      smallest_step_(std::max<double>(largest / kLargestLevel, std::numeric_limits<float>::min())),
      // Not below the least step, which values below the normal numbers need not reach.
      largest_step_(
          std::clamp<double>(kMostBeyondLargest * largest, smallest_step_, kLargest<float>)),
      wanted_bytes_(info.rate * static_cast<double>(info.num_values()) / 8),
      fixed_bytes_(fixed_bytes),
      num_values_(static_cast<double>(info.num_values())) {
  auto counts = std::make_unique<kernels::SignedBinCounts>();
  double zeros = 0, sampled = 0, sum = 0;
  for (std::size_t block = 0; block < info.num_blocks(); ++block) {
    const BlockRange range = block_range(info, block);
    const auto wanted =
        std::max(kLeastOfBlock, static_cast<std::uint64_t>(kSample * (range.count / num_values_)));
    *counts = {};
    with_value_type(info.dtype, [&]<typename T>() {
      const T* const values = static_cast<const T*>(tensor.data);
      count_sample(std::span(values + range.first, range.count), wanted, block, *counts);
    });
    Part part = {law_of(*counts), 0, static_cast<double>(range.count)};
    part.num_sampled = part.law.zeros;
    for (const auto* bins : {&part.law.positive, &part.law.negative})
      for (const MagnitudeBin& bin : *bins) {
        part.num_sampled += bin.count;
        sum += bin.count * (0.5 * (bin.low + bin.high));
      }
    zeros += part.law.zeros;
    sampled += part.num_sampled;
    parts_.push_back(std::move(part));
  }
  if (info.model != TableModel::kCounted) {
    model_shape_ = info.model_shape;
    model_scale_ = model_scale;
    zero_share_ = zeros / sampled;
  }
  start_step_ = sum > 0 ? sum / sampled : largest;
  step_ = solve(1);
}

RateChoice::Size RateChoice::predicted(double step) const {
  Size size = {0, fixed_bytes_};
  if (model_shape_ > 0) {
    // Zeros beside the law are coded with its table as well.
    const SymbolMasses masses = level_masses(model_shape_, model_scale_, step, rounding_);
    const double zero_bits = -portable_log2(std::max(masses[kOpenCentre], 0x1p-12));
    const double bits = (1 - zero_share_) * level_bits(masses) + zero_share_ * zero_bits;
    for (const Part& part : parts_) {
      const double coded = part.num_values * bits / 8;
      size.coded += coded;
      size.overhead += (coded < kPairedBytes ? 1 : 2) * kStreamBytes + 5;
    }
    return size;
  }
  for (const Part& part : parts_) {
    SymbolMasses shares = level_masses(part.law, step, rounding_);
    for (double& share : shares) share /= part.num_sampled;
    const Size block = block_size(shares, part.num_values);
    size.coded += block.coded;
    size.overhead += block.overhead;
  }
  return size;
}

// A small tensor, whose tables alone would take its rate, keeps half of it for its values: a larger
// step would make noise of them.
double RateChoice::charged(double overhead) const {
  return std::min(overhead, 0.5 * wanted_bytes_);
}

// The step at which the payload is predicted to have the wanted size, if values take `factor` times
// their entropy: a secant within a bracket, as the bits a value fall by nearly one an octave at
// high rates and more slowly at low ones.
float RateChoice::solve(double factor) const {
  const double wanted = 8 * wanted_bytes_ / num_values_;  // bits a value
  double low = portable_log2(smallest_step_), high = portable_log2(largest_step_);
  double u = std::clamp(portable_log2(start_step_) + 2 - wanted, low, high);
  double last_u = 0, last_miss = 0, slope = wanted < 1 ? -wanted : -1;
  for (int i = 0; i < 40 && high - low > 1e-4; ++i) {
    const Size size = predicted(portable_exp(u * kPortableLn2));
    const double miss = 8 * (factor * size.coded + charged(size.overhead)) / num_values_ - wanted;
    if (std::abs(miss) < 5e-4 * wanted) break;
    (miss > 0 ? low : high) = u;
    if (i > 0 && last_u != u) slope = (miss - last_miss) / (u - last_u);
    last_u = u;
    last_miss = miss;
    const double next = slope < 0 ? u - miss / slope : low;
    // Where the secant leads out of the bracket, half way, or four octaves on.
    const double middle = 0.5 * (low + high);
    u = next > low && next < high ? next
        : miss > 0                ? std::min(u + 4, middle)
                                  : std::max(u - 4, middle);
  }
  return static_cast<float>(
      std::clamp(portable_exp(u * kPortableLn2), smallest_step_, largest_step_));
}

// The first correction takes the prediction at its word but for a factor. Where values depend on
// one another (rows of zeros, columns of other scales) the factor itself changes with the step;
// then a line through two tries, in logarithms, finds it.
std::optional<float> RateChoice::corrected_step(std::uint64_t payload_bytes) {
  const Size size = predicted(step_);
  const double coded = static_cast<double>(payload_bytes) - size.overhead;
  const double wanted = wanted_bytes_ - charged(size.overhead);
  const double miss = std::abs(coded - wanted) / wanted_bytes_;
  tries_.push_back({step_, coded > 0 ? portable_log2(coded / wanted) : -40, miss});
  const auto best = std::ranges::min_element(tries_, {}, &Try::miss);
  const double tolerance =
      num_values_ >= static_cast<double>(kManyValues) ? kTolerance : kSmallTolerance;
  if (finished_) return std::nullopt;
  if (miss <= tolerance || tries_.size() == kMostTries) return finish_with(best->step);
  double next = 0;
  if (tries_.size() == 1) {
    if (coded <= 0 || size.coded <= 0) return std::nullopt;
    next = solve(coded / size.coded);
  } else {
    const Try &one = tries_[tries_.size() - 2], &two = tries_.back();
    const double u = portable_log2(one.step), v = portable_log2(two.step);
    const double slope = (two.excess - one.excess) / (v - u);
    if (!(slope < 0)) return finish_with(best->step);
    next = portable_exp(std::clamp(v - two.excess / slope, v - 2, v + 2) * kPortableLn2);
  }
  next = std::clamp(next, smallest_step_, largest_step_);
  const bool is_new =
      std::ranges::find(tries_, static_cast<float>(next), &Try::step) == tries_.end();
  if (!is_new) return finish_with(best->step);
  return step_ = static_cast<float>(next);
}

// The last step: nothing to do if it is the one that was tried last.
std::optional<float> RateChoice::finish_with(float step) {
  finished_ = true;
  if (step == step_) return std::nullopt;
  return step_ = step;
}

}  // namespace slimgrad
