// From weights to integer frequencies, what they cost, and how they travel.
#ifndef SLIMGRAD_ARRAYS_CODING_FREQUENCIES_H_
#define SLIMGRAD_ARRAYS_CODING_FREQUENCIES_H_

#include <optional>

#include "arrays/coding/bit_io.h"
#include "arrays/coding/huffman_lengths.h"
#include "kernels/coding/byte_counts.h"
#include "kernels/coding/rans.h"

namespace slimgrad {

Weights to_weights(const kernels::ByteCounts& counts);

// The frequencies that minimise the coded size sum -weight log2(frequency), every symbol with a
// weight keeping at least 1. Optimal up to rounding of doubles, and the same on every machine.
// Nothing if fewer than two symbols have a weight. REQUIRES: the sum of the weights is below 2^52.
std::optional<kernels::RansFrequencies> fit_frequencies(const Weights& weights);

// The bits that rANS needs for the weights' symbols, apart from its states; of one without a
// frequency also the value, and, if there is no escape, the place.
double coded_bits(const Weights& weights, const kernels::RansFrequencies& frequencies);

// The least that any code without context needs: sum -weight log2(weight / sum).
double entropy_bits(const Weights& weights);

// With an escape, if two or more symbols deserve less than a quarter of the smallest frequency: a
// few hundred bytes beside the stream then save a good part of the table and of its own bytes. On
// gradient codes of 8 bits this comes within 0.5 % of the entropy, table included.
// kSample: the weights are of a sample, and the table must have a code for what it did not see.
enum class CountedFrom { kAll, kSample };
std::optional<kernels::RansFrequencies> choose_frequencies(const Weights& weights,
                                                           CountedFrom from = CountedFrom::kAll);

// Without frequencies for the rarest symbols, whose values and places are to travel. Nothing if the
// weights' places would take more than 0.3 % of their code, if the weights add up to less than
// 2^16, or if fewer than two symbols are common.
std::optional<kernels::RansFrequencies> choose_common_frequencies(const Weights& weights);

// The table in few bits: whether there is an escape, 1 bit, and which, 8 bits; the first and last
// symbol with a frequency, 8 bits each; then of each from the first
// to the last the bit width of its frequency as a step from the one before (zigzag in unary: 1, 01,
// 001 for 0, -1, +1, ...), and the bits below the highest. Neighbouring codes of a gradient have
// like frequencies, so a step costs between one and two bits.
void write_frequencies(const kernels::RansFrequencies& frequencies, BitWriter& out);
bool read_frequencies(BitReader& in,
                      kernels::RansFrequencies& frequencies);  // false: no valid table

// Code lengths in the same way, without the bits below.
void write_lengths(const kernels::HuffmanLengths& lengths, BitWriter& out);
bool read_lengths(BitReader& in, kernels::HuffmanLengths& lengths);

}  // namespace slimgrad

#endif  // SLIMGRAD_ARRAYS_CODING_FREQUENCIES_H_
