// From weights to integer frequencies, and what they cost.
#ifndef SLIMGRAD_MATH_CODING_FREQUENCIES_H_
#define SLIMGRAD_MATH_CODING_FREQUENCIES_H_

#include <array>
#include <cstdint>
#include <optional>

#include "formats/code_tables.h"
#include "math/coding/huffman_lengths.h"

namespace slimgrad {

Weights to_weights(const std::array<std::uint32_t, 256>& counts);

// The frequencies that minimise the coded size sum -weight log2(frequency), every symbol with a
// weight keeping at least 1. Optimal up to rounding of doubles, and the same on every machine.
// Nothing if fewer than two symbols have a weight. REQUIRES: the sum of the weights is below 2^52.
std::optional<RansFrequencies> fit_frequencies(const Weights& weights);

// The bits that rANS needs for the weights' symbols, apart from its states; of one without a
// frequency also the value, and, if there is no escape, the place.
double coded_bits(const Weights& weights, const RansFrequencies& frequencies);

// The least that any code without context needs: sum -weight log2(weight / sum).
double entropy_bits(const Weights& weights);

// With an escape, if two or more symbols deserve less than a quarter of the smallest frequency: a
// few hundred bytes beside the stream then save a good part of the table and of its own bytes. On
// gradient codes of 8 bits this comes within 0.5 % of the entropy, table included.
// kSample: the weights are of a sample, and the table must have a code for what it did not see.
enum class CountedFrom { kAll, kSample };
std::optional<RansFrequencies> choose_frequencies(const Weights& weights,
                                                  CountedFrom from = CountedFrom::kAll);

// Without frequencies for the rarest symbols, whose values and places are to travel. Nothing if the
// weights' places would take more than 0.3 % of their code, if the weights add up to less than
// 2^16, or if fewer than two symbols are common.
std::optional<RansFrequencies> choose_common_frequencies(const Weights& weights);

}  // namespace slimgrad

#endif  // SLIMGRAD_MATH_CODING_FREQUENCIES_H_
