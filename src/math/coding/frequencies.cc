#include "math/coding/frequencies.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "base/portable_math.h"

namespace slimgrad {
namespace {

// saving[f] = ln((f + 1) / f) = 2 artanh(1 / (2 f + 1)): what a symbol of weight one saves, in
// nats, when its frequency grows from f to f + 1.
struct SavingTable {
  std::array<double, kMaxRansFrequency> saving;
  constexpr SavingTable() : saving() {
    for (std::size_t f = 1; f < saving.size(); ++f) {
      const double y = 1.0 / (2.0 * static_cast<double>(f) + 1.0);
      const double z = y * y;
      double sum = 0.0;
      for (int k = 19; k >= 1; k -= 2) sum = sum * z + 1.0 / k;
      saving[f] = 2.0 * y * sum;
    }
  }
};
constexpr SavingTable kSaving;

// The frequencies of m symbols while they are being improved, with the saving of one more and the
// loss of one less kept for each.
class Exchange {
 public:
  Exchange(const std::array<std::uint64_t, 256>& weight, std::size_t m) : weight_(weight), m_(m) {}

  void set(std::size_t i, std::uint32_t f) {
    constexpr double kNever = std::numeric_limits<double>::infinity();
    const double w = static_cast<double>(weight_[i]);
    frequency[i] = f;
    gain_[i] = f < kMaxRansFrequency ? w * kSaving.saving[f] : -kNever;
    loss_[i] = f > 1 ? w * kSaving.saving[f - 1] : kNever;
  }
  std::size_t best_to_grow() const {
    return static_cast<std::size_t>(std::max_element(gain_.begin(), gain_.begin() + m_) -
                                    gain_.begin());
  }
  std::size_t best_to_shrink() const {
    return static_cast<std::size_t>(std::min_element(loss_.begin(), loss_.begin() + m_) -
                                    loss_.begin());
  }
  bool pays(std::size_t grow, std::size_t shrink) const { return gain_[grow] > loss_[shrink]; }

  std::array<std::uint32_t, 256> frequency;

 private:
  const std::array<std::uint64_t, 256>& weight_;
  std::size_t m_;
  std::array<double, 256> gain_, loss_;
};

// A symbol escapes if its share is at most 2^-14. Found by trying: the best limit for codes of
// generalized normal laws is between an eighth and a half of the smallest frequency, 2^-12.
constexpr int kRareShare = 14;

// If its place travels, too, that costs 24 bits and not 18, so fewer should: 2^-16.
constexpr int kPlacedShare = 16;
constexpr int kPlacedBits = 8 + 16;
// The largest share of the code that all places together may take.
constexpr double kMostPlaced = 0.003;

}  // namespace

Weights to_weights(const std::array<std::uint32_t, 256>& counts) {
  Weights weights;
  std::copy(counts.begin(), counts.end(), weights.begin());
  return weights;
}

// The objective is a sum of convex functions, one a symbol, under a fixed sum. For such a problem a
// choice is optimal as soon as no exchange of one unit between two symbols improves it. Begin near
// the optimum, with each symbol's share rounded; then mend the sum, and exchange, always by the
// best unit.
std::optional<RansFrequencies> fit_frequencies(const Weights& weights) {
  std::array<std::uint64_t, 256> weight;
  std::array<std::uint8_t, 256> symbol;
  std::size_t m = 0;
  double sum = 0.0;
  for (int s = 0; s < 256; ++s)
    if (weights[s] > 0) {
      symbol[m] = static_cast<std::uint8_t>(s);
      weight[m++] = weights[s];
      sum += static_cast<double>(weights[s]);
    }
  if (m < 2) return std::nullopt;

  // Symbols that deserve less than 1 take 1; the others share the rest.
  double rest_weight = sum, rest = kRansTotal;
  for (std::size_t i = 0; i < m; ++i)
    if (static_cast<double>(weight[i]) * kRansTotal < sum) {
      rest_weight -= static_cast<double>(weight[i]);
      rest -= 1.0;
    }
  Exchange exchange(weight, m);
  std::int64_t missing = kRansTotal;
  for (std::size_t i = 0; i < m; ++i) {
    const double share = static_cast<double>(weight[i]) * (rest / rest_weight) + 0.5;
    const double f = std::clamp(share, 1.0, static_cast<double>(kMaxRansFrequency));
    exchange.set(i, static_cast<std::uint32_t>(f));
    missing -= exchange.frequency[i];
  }
  for (; missing > 0; --missing) {
    const std::size_t i = exchange.best_to_grow();
    exchange.set(i, exchange.frequency[i] + 1);
  }
  for (; missing < 0; ++missing) {
    const std::size_t i = exchange.best_to_shrink();
    exchange.set(i, exchange.frequency[i] - 1);
  }
  // Each exchange lowers the cost, so this ends; the bound is for the case that rounding makes two
  // equal choices each look better than the other.
  for (int round = 0; round < 4096; ++round) {
    const std::size_t grow = exchange.best_to_grow(), shrink = exchange.best_to_shrink();
    if (!exchange.pays(grow, shrink)) break;
    exchange.set(grow, exchange.frequency[grow] + 1);
    exchange.set(shrink, exchange.frequency[shrink] - 1);
  }
  RansFrequencies frequencies;
  for (std::size_t i = 0; i < m; ++i)
    frequencies.frequency[symbol[i]] = static_cast<std::uint16_t>(exchange.frequency[i]);
  return frequencies;
}

double coded_bits(const Weights& weights, const RansFrequencies& frequencies) {
  const std::uint32_t most =
      *std::max_element(frequencies.frequency.begin(), frequencies.frequency.end());
  double nats = 0.0, sum = 0.0;
  for (int s = 0; s < 256; ++s)
    if (weights[s] > 0) {
      const double w = static_cast<double>(weights[s]);
      const bool escapes = frequencies.escapes(s);
      const std::uint32_t f = frequencies.frequency[escapes ? frequencies.escape : s];
      nats -= w * portable_log(static_cast<double>(f > 0 ? f : most));
      sum += w * (kRansBits + (escapes ? 8 : f > 0 ? 0 : kPlacedBits));
    }
  return nats / kPortableLn2 + sum;
}

double entropy_bits(const Weights& weights) {
  double nats = 0.0, sum = 0.0;
  for (const std::uint64_t weight : weights)
    if (weight > 0) {
      const double w = static_cast<double>(weight);
      nats -= w * portable_log(w);
      sum += w;
    }
  return sum > 0 ? (nats + sum * portable_log(sum)) / kPortableLn2 : 0.0;
}

std::optional<RansFrequencies> choose_frequencies(const Weights& weights, CountedFrom from) {
  const std::uint64_t sum = std::accumulate(weights.begin(), weights.end(), std::uint64_t{0});
  Weights merged = weights;
  std::uint64_t rare = 0;
  int num_rare = 0, num_unseen = 0, escape = -1;
  for (int s = 0; s < 256; ++s) {
    num_unseen += weights[s] == 0 ? 1 : 0;
    if (weights[s] == 0 || weights[s] > sum >> kRareShare) continue;
    rare += weights[s];
    ++num_rare;
    // The commonest of them is likely to lie beside the others, where it costs the table least.
    if (escape < 0 || weights[s] > weights[escape]) escape = s;
    merged[s] = 0;
  }
  const bool open = from == CountedFrom::kSample && num_unseen > 0;
  if (num_rare < 2 && !open) return fit_frequencies(weights);
  if (escape < 0) {  // the neighbour of the last symbol seen, or any other that is free
    for (int s = 0; s < 256; ++s)
      if (weights[s] == 0 && (escape < 0 || (s > 0 && weights[s - 1] > 0))) escape = s;
    rare = 1;
  }
  merged[escape] = rare;
  std::optional<RansFrequencies> frequencies = fit_frequencies(merged);
  if (frequencies) frequencies->escape = escape;
  return frequencies;
}

std::optional<RansFrequencies> choose_common_frequencies(const Weights& weights) {
  const std::uint64_t sum = std::accumulate(weights.begin(), weights.end(), std::uint64_t{0});
  const std::uint64_t most_rare = sum >> kPlacedShare;
  if (most_rare == 0) return std::nullopt;  // so few that each one counts
  Weights common = weights;
  std::uint64_t rare = 0;
  for (std::uint64_t& weight : common)
    if (weight <= most_rare) rare += std::exchange(weight, 0);
  std::optional<RansFrequencies> frequencies = fit_frequencies(common);
  if (!frequencies) return frequencies;
  const double places = kPlacedBits * static_cast<double>(rare);
  return places <= kMostPlaced * coded_bits(weights, *frequencies) ? frequencies : std::nullopt;
}

}  // namespace slimgrad
