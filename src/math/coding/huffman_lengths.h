// Optimal code lengths under a limit.
#ifndef SLIMGRAD_MATH_CODING_HUFFMAN_LENGTHS_H_
#define SLIMGRAD_MATH_CODING_HUFFMAN_LENGTHS_H_

#include <array>
#include <cstdint>

#include "formats/code_tables.h"

namespace slimgrad {

using Weights = std::array<std::uint64_t, 256>;

// The lengths of a prefix code for the symbols with a non-zero weight that minimise sum weight *
// length among all codes of at most `limit` bits, by package-merge (Larmore and Hirschberg 1990) in
// O(limit * symbols). The same weights give the same lengths on every machine.
// REQUIRES: at least two non-zero weights, 8 <= limit <= kMaxHuffmanBits, the sum of the weights
// below 2^52.
HuffmanLengths huffman_lengths(const Weights& weights, int limit = kMaxHuffmanBits);

}  // namespace slimgrad

#endif  // SLIMGRAD_MATH_CODING_HUFFMAN_LENGTHS_H_
