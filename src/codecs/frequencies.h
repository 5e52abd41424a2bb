// From weights to integer frequencies, what they cost, and how they travel.
#ifndef SLIMGRAD_CODECS_FREQUENCIES_H_
#define SLIMGRAD_CODECS_FREQUENCIES_H_

#include <optional>

#include "codecs/bit_io.h"
#include "codecs/huffman_lengths.h"
#include "kernels/byte_counts.h"
#include "kernels/rans.h"

namespace slimgrad {

Weights to_weights(const ByteCounts& counts);

// The frequencies with sum 2^bits that minimise the coded size sum -weight log2(frequency), every
// symbol with a weight keeping at least 1. Optimal up to rounding of doubles, and the same on every
// machine. Nothing if fewer than two symbols have a weight or if 2^bits cannot be reached with
// frequencies of at most kMaxRansFrequency. REQUIRES: the sum of the weights is below 2^52.
std::optional<RansFrequencies> fit_frequencies(const Weights& weights, int bits);

// The bits that rANS needs for the weights' symbols, apart from its states.
double coded_bits(const Weights& weights, const RansFrequencies& frequencies);

// The least that any code without context needs: sum -weight log2(weight / sum).
double entropy_bits(const Weights& weights);

// The fewest bits whose rounding costs less than 0.2 % over the entropy: 12 keep the decoder's
// table in the L1 cache; 13 and 14 decode 7 % and 17 % more slowly. Nothing if fewer than two
// symbols have a weight.
std::optional<RansFrequencies> choose_frequencies(const Weights& weights);

// The table in few bits: the first and last symbol in use, 8 bits each; then of each from the first
// to the last the bit width of its frequency as a step from the one before (zigzag in unary: 1, 01,
// 001 for 0, -1, +1, ...), and the bits below the highest. Neighbouring codes of a gradient have
// like frequencies, so a step costs between one and two bits.
void write_frequencies(const RansFrequencies& frequencies, BitWriter& out);
bool read_frequencies(BitReader& in, RansFrequencies& frequencies);  // false: no valid table

// Code lengths in the same way, without the bits below.
void write_lengths(const HuffmanLengths& lengths, BitWriter& out);
bool read_lengths(BitReader& in, HuffmanLengths& lengths);

}  // namespace slimgrad

#endif  // SLIMGRAD_CODECS_FREQUENCIES_H_
