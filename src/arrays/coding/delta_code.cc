#include "arrays/coding/delta_code.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "base/portable_math.h"
#include "math/coding/frequencies.h"

namespace slimgrad {
namespace {

using namespace delta_format;

// Tensors up to this size are dense throughout: hazards and a table of gaps would cost more.
constexpr std::uint64_t kSmallTensor = 4096;
// A dense value takes a step of the coder, a sparse one almost none: a dense class must save this
// many bits a value.
constexpr double kStepBits = 0.01;
// A change in a sparse class whose chance is p costs about kCrowdedBits * p bits more than it
// should, because hazards are cut at multiples of 2^16 and limited.
constexpr double kCrowdedBits = 6;
// A table costs about this many bits, and for each symbol.
constexpr double kTableBits = 24, kTableSymbolBits = 9;
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
  double unchanged() const { return std::max(values - changes, 0.0); }
  Weights with_unchanged() const {
    Weights weights = by_symbol;
    weights[0] = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(unchanged()));
    return weights;
  }
};

double table_bits(const Weights& weights) {
  return kTableBits + kTableSymbolBits * static_cast<double>(std::ranges::count_if(
                                             weights, [](std::uint64_t w) { return w > 0; }));
}

std::vector<Share> shares_of(const DeltaCounts& counts, std::uint64_t num_values) {
  const double scale = static_cast<double>(num_values) /
                       static_cast<double>(std::max<std::uint64_t>(counts.num_sampled, 1));
  std::vector<Share> shares(256);
  for (std::size_t e = 0; e < 256; ++e) {
    Share& share = shares[e];
    for (std::size_t s = 0; s < 256; ++s) share.by_symbol[s] = counts.changes[e][s];
    share.changes = static_cast<double>(
        std::accumulate(counts.changes[e].begin(), counts.changes[e].end(), std::uint64_t{0}));
    share.values = std::max(scale * static_cast<double>(counts.values[e]), share.changes);
  }
  return shares;
}

// The split with the least cost: entropies of all exponents, and what dense and sparse ones add.
int choose_split(const std::vector<Share>& shares) {
  // From "all are dense" downwards, an exponent at a time becomes sparse.
  double cost = 0;
  for (const Share& share : shares) {
    const double floor = share.values / kRansTotal;
    cost += std::max(entropy_bits(share.with_unchanged()), floor) + kStepBits * share.values;
  }
  int best = kZeroExponent;
  double least = cost;
  for (int split = kZeroExponent - 1; split >= 0; --split) {
    const Share& share = shares[static_cast<std::size_t>(split) + 1];
    if (share.values > 0) {
      const double entropy = entropy_bits(share.with_unchanged());
      cost += entropy + kCrowdedBits * share.chance() * share.changes;
      cost -= std::max(entropy, share.values / kRansTotal) + kStepBits * share.values;
    }
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

void choose_hazards(const std::array<Share, kClasses>& classes, DeltaCode& code) {
  std::array<double, kClasses> nats = {};
  double all = 0, most = 0;
  for (const Share& share : classes) all += share.changes;
  for (int c = 1; c < kClasses; ++c) {
    if (classes[c].changes == 0) continue;
    nats[c] = -portable_log(1 - std::min(classes[c].chance(), 0.5));
    // A class of a few values, which a sample may have missed, does not set the scale.
    if (classes[c].changes > kSmallShare * all) most = std::max(most, nats[c]);
  }
  if (most == 0) return;
  const double scale =
      std::min(hazard_of(kMaxHazardCode) / most, std::max(kLeastScale, kFineHazard / most));
  for (int c = 1; c < kClasses; ++c)
    if (nats[c] > 0) code.hazard_codes[c] = nearest_hazard(scale * nats[c]);
}

// Neighbours share a table where two tables would cost more than they save.
void choose_tables(const std::vector<Weights>& contexts, DeltaCode& code) {
  std::vector<Weights> groups = {contexts[0]};
  for (std::size_t c = 1; c < contexts.size(); ++c) {
    Weights joined = groups.back();
    for (std::size_t s = 0; s < joined.size(); ++s) joined[s] += contexts[c][s];
    const double apart = entropy_bits(groups.back()) + table_bits(groups.back()) +
                         entropy_bits(contexts[c]) + table_bits(contexts[c]);
    if (apart < entropy_bits(joined) + table_bits(joined))
      groups.push_back(contexts[c]);
    else
      groups.back() = joined;
    code.table_of[c] = static_cast<std::uint8_t>(groups.size() - 1);
  }
  for (const Weights& group : groups) code.tables.push_back(table_for(group));
}

}  // namespace

void DeltaCounts::add(const DeltaCounts& other) {
  num_sampled += other.num_sampled;
  for (std::size_t e = 0; e < 256; ++e) {
    values[e] += other.values[e];
    if (!other.has_changes[e]) continue;
    has_changes[e] = true;
    // Saturates: 2^32 changes, as none, would leave their symbol without a code.
    for (std::size_t s = 0; s < 256; ++s)
      changes[e][s] += std::min(other.changes[e][s], ~changes[e][s]);
  }
}

void DeltaCounts::clear() {
  num_sampled = 0;
  values = {};
  for (std::size_t e = 0; e < 256; ++e)
    if (std::exchange(has_changes[e], false)) changes[e] = {};
}

RansFrequencies table_for(Weights weights) {
  if (std::ranges::count(weights, 0u) > 254) {
    weights[0] += 1;
    weights[1] += 1;
  }
  return fit_frequencies(weights).value();
}

DeltaCode choose_code(const DeltaCounts& counts, std::uint64_t num_values) {
  const std::vector<Share> shares = shares_of(counts, num_values);
  DeltaCode code;
  code.split = num_values <= kSmallTensor ? kZeroExponent : choose_split(shares);
  code.top = code.all_dense() ? choose_top(shares) : code.split;
  std::array<Share, kClasses> classes;
  std::array<Share, kDenseContexts> dense;
  for (int e = 0; e < 256; ++e) {
    const int value_class = class_of(e, code.split);
    if (value_class > 0)
      classes[value_class].add(shares[e]);
    else
      dense[dense_context(e, code.top)].add(shares[e]);
  }
  choose_hazards(classes, code);
  std::vector<Weights> contexts;
  // A sample may have missed a dense value that did not change: each context has that symbol.
  for (const Share& share : dense) contexts.push_back(share.with_unchanged());
  if (!code.all_dense())
    for (int c = 1; c < kClasses; ++c) contexts.push_back(classes[c].by_symbol);
  choose_tables(contexts, code);
  return code;
}

kernels::Hazards hazards_of(const DeltaCode& code) {
  kernels::Hazards hazards;
  for (int c = 0; c < kClasses; ++c)
    hazards[c] = static_cast<std::uint16_t>(hazard_of(code.hazard_codes[c]));
  return hazards;
}

}  // namespace slimgrad
