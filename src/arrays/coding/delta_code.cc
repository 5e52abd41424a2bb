#include "arrays/coding/delta_code.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "base/portable_math.h"
#include "math/coding/frequencies.h"

namespace slimgrad {
namespace {

using namespace delta_format;

// Tensors up to this size are dense throughout: hazards and a table of gaps would cost more.
constexpr std::uint64_t kSmallTensor = 4096;
// A dense value takes a third of the time of a sparse change, and one that did not change need not:
// a class is dense if that saves this many bits a value, which is so if more than a third changed.
constexpr double kStepBits = 0.12;
// What a change loses that is cut at a multiple of 2^16, on average: its larger part has any share
// from 1/2 to 1, and -log2 of that has the mean 0.443.
constexpr double kCutBits = 0.443;
// A table costs about this many bits, and for each symbol.
constexpr double kTableBits = 24, kTableSymbolBits = 9;
// It also takes 16 KiB of a decoder's cache, and has to save this share of all bits.
constexpr double kTableShare = 0.0005;
// Hazards a nat: at least kLeastScale, which makes the mean gap 2, and for rare changes what gives
// the most likely class kFineHazard, so that hazards are integers without much rounding.
// Classes with less than kSmallShare of the changes take what is left.
constexpr double kSmallShare = 0.01;
constexpr double kLeastScale = 131072, kFineHazard = 2048;

// What is known of one exponent or class.
struct Share {
  double values = 0, changes = 0;
  Weights by_symbol = {};

  void add(const Share& other) {
    values += other.values;
    changes += other.changes;
    for (std::size_t s = 0; s < by_symbol.size(); ++s) by_symbol[s] += other.by_symbol[s];
  }
  double chance() const { return changes / std::max(values, 1.0); }
};

double nats_of(double chance) { return -portable_log(1 - chance); }

double table_bits(const Weights& weights) {
  return kTableBits + kTableSymbolBits * static_cast<double>(std::ranges::count_if(
                                             weights, [](std::uint64_t w) { return w > 0; }));
}

std::vector<Share> shares_of(const DeltaCounts& counts) {
  std::vector<Share> shares(256);
  for (std::size_t e = 0; e < 256; ++e) {
    Share& share = shares[e];
    share.values = static_cast<double>(counts.values[e]);
    if (!counts.changes[e]) continue;
    for (std::size_t s = 0; s < 256; ++s) {
      share.by_symbol[s] = (*counts.changes[e])[s];
      share.changes += static_cast<double>(share.by_symbol[s]);
    }
  }
  return shares;
}

double dense_bits(const Share& share) {
  Weights weights = share.by_symbol;
  weights[0] = static_cast<std::uint64_t>(share.values - share.changes);
  return std::max(entropy_bits(weights), share.values / kRansTotal) + kStepBits * share.values;
}

// The entropy, more where the chance is larger than a hazard can say, and what cuts lose.
double sparse_bits(const Share& share) {
  if (share.changes == 0) return 0;
  const double most = hazard_of(kMaxHazardCode) / kLeastScale;
  const double nats = share.chance() < 1 ? std::min(nats_of(share.chance()), most) : most;
  const double log_change = portable_log(1 - portable_exp(-nats));
  const double places = (share.values - share.changes) * nats - share.changes * log_change;
  const double cut = kCutBits * share.changes * nats * kLeastScale / kGapUnit;
  return places / std::numbers::ln2 + cut + entropy_bits(share.by_symbol);
}

// The split with the least cost: from "all are dense" downwards, an exponent at a time becomes
// sparse.
int choose_split(const std::vector<Share>& shares) {
  double cost = 0;
  for (const Share& share : shares) cost += dense_bits(share);
  int best = kZeroExponent;
  double least = cost;
  for (int split = kZeroExponent - 1; split >= 0; --split) {
    const Share& share = shares[static_cast<std::size_t>(split) + 1];
    cost += sparse_bits(share) - dense_bits(share);
    if (cost < least) {
      least = cost;
      best = split;
    }
  }
  return best;
}

// The largest exponent but for the last percent of the values, and zeros.
int choose_top(const std::vector<Share>& shares) {
  double all = 0, above = 0;
  for (int e = 0; e < kZeroExponent; ++e) all += shares[static_cast<std::size_t>(e)].values;
  for (int e = kZeroExponent - 1; e > 0; --e) {
    above += shares[static_cast<std::size_t>(e)].values;
    if (above > 0.01 * all) return e;
  }
  return 0;
}

// The code whose hazard is next to this one, in proportion.
std::uint8_t nearest_hazard(double hazard) {
  int best = 1;
  for (int code = 2; code <= kMaxHazardCode; ++code) {
    const double low = hazard_of(code - 1), high = hazard_of(code);
    if (hazard * hazard > low * high) best = code;
  }
  return static_cast<std::uint8_t>(best);
}

// A class in which the sample saw no change, or not even a value, has a hazard all the same.
void choose_hazards(const std::array<Share, kClasses>& classes, DeltaCode& code) {
  std::array<double, kClasses> nats = {};
  Share all;
  for (const Share& share : classes) all.add(share);
  double most = 0;
  for (int c = 1; c < kClasses; ++c) {
    const Share& share = classes[c];
    const double chance = (share.changes + all.chance()) / (share.values + 1);
    nats[c] = nats_of(std::min(chance, 0.5));
    // A class of a few values, which a sample may have missed, does not set the scale.
    if (share.changes > kSmallShare * all.changes) most = std::max(most, nats[c]);
  }
  const double scale = most == 0 ? 0
                                 : std::min(hazard_of(kMaxHazardCode) / most,
                                            std::max(kLeastScale, kFineHazard / most));
  for (int c = 1; c < kClasses; ++c) code.hazard_codes[c] = nearest_hazard(scale * nats[c]);
}

// A table has codes for at least two symbols.
RansFrequencies table_for(Weights weights) {
  if (std::ranges::count(weights, 0u) > 254) {
    weights[0] += 1;
    weights[1] += 1;
  }
  return fit_frequencies(weights).value();
}

}  // namespace

void DeltaCounts::add(const DeltaCounts& other) {
  num_sampled += other.num_sampled;
  for (std::size_t e = 0; e < 256; ++e) {
    values[e] += other.values[e];
    if (!other.changes[e]) continue;
    std::array<std::uint32_t, 256>& sums = changes_of(e);
    for (std::size_t s = 0; s < 256; ++s) sums[s] += (*other.changes[e])[s];
  }
}

std::uint64_t DeltaCounts::num_changes() const {
  std::uint64_t sum = 0;
  for (const auto& of_exponent : changes)
    if (of_exponent) sum += std::accumulate(of_exponent->begin(), of_exponent->end(), 0ull);
  return sum;
}

DeltaCode choose_code(const DeltaCounts& counts, std::uint64_t num_values) {
  const std::vector<Share> shares = shares_of(counts);
  DeltaCode code;
  code.split = num_values <= kSmallTensor ? kZeroExponent : choose_split(shares);
  code.top = code.all_dense() ? choose_top(shares) : code.split;
  if (code.all_dense()) return code;
  std::array<Share, kClasses> classes;
  for (int e = 0; e < 256; ++e)
    if (const int value_class = class_of(e, code.split); value_class > 0)
      classes[value_class].add(shares[e]);
  choose_hazards(classes, code);
  return code;
}

// Neighbours share a table where two tables would cost more than they save.
void choose_tables(std::span<const Weights, kContexts> contexts, const Weights& gaps,
                   DeltaCode& code) {
  const std::size_t count = code.all_dense() ? kDenseContexts : kContexts;
  double least_saved = 0;
  for (std::size_t c = 0; c < count; ++c) least_saved += kTableShare * entropy_bits(contexts[c]);
  std::vector<Weights> groups = {contexts[0]};
  for (std::size_t c = 1; c < count; ++c) {
    Weights joined = groups.back();
    for (std::size_t s = 0; s < joined.size(); ++s) joined[s] += contexts[c][s];
    const double apart = entropy_bits(groups.back()) + table_bits(groups.back()) +
                         entropy_bits(contexts[c]) + table_bits(contexts[c]);
    if (apart + least_saved < entropy_bits(joined) + table_bits(joined))
      groups.push_back(contexts[c]);
    else
      groups.back() = joined;
    code.table_of[c] = static_cast<std::uint8_t>(groups.size() - 1);
  }
  for (const Weights& group : groups) code.tables.push_back(table_for(group));
  if (code.has_gaps()) code.gaps = table_for(gaps);
}

kernels::Hazards hazards_of(const DeltaCode& code) {
  kernels::Hazards hazards;
  for (int c = 0; c < kClasses; ++c)
    hazards[c] = static_cast<std::uint16_t>(hazard_of(code.hazard_codes[c]));
  return hazards;
}

}  // namespace slimgrad
