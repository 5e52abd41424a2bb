#include "math/coding/huffman_lengths.h"

#include <algorithm>
#include <vector>

namespace slimgrad {

// Package-merge sees a code as a choice of coins: a word of l bits holds one coin of each of the
// face values 2^-1 ... 2^-l, all with the symbol's weight, and a complete code of m words is a
// cheapest choice worth m - 1. From the smallest value up: pair the cheapest coins into packages,
// merge the packages with the coins of the next value. The cheapest 2m - 2 items of the last list
// are the choice; going back down, a list's chosen items are a prefix, its packages among them
// choose twice as many items of the list below, and each coin in a prefix adds one bit to its
// symbol.
HuffmanLengths huffman_lengths(const Weights& weights, int limit) {
  std::array<std::uint8_t, 256> symbols;
  std::size_t m = 0;
  for (int s = 0; s < 256; ++s)
    if (weights[s] > 0) symbols[m++] = static_cast<std::uint8_t>(s);
  std::stable_sort(symbols.begin(), symbols.begin() + m,
                   [&](std::uint8_t a, std::uint8_t b) { return weights[a] < weights[b]; });

  // is_package[level][i] tells what item i of a level's merged list is; a coin goes first in a tie.
  std::array<std::array<bool, 512>, kMaxHuffmanBits> is_package;
  std::array<std::uint64_t, 512> below, list;
  std::size_t below_size = 0;
  for (int level = 0; level < limit; ++level) {
    const std::size_t packages = below_size / 2;
    std::size_t coin = 0, package = 0, size = 0;
    while (coin < m || package < packages) {
      const bool take_package =
          coin == m || (package < packages &&
                        below[2 * package] + below[2 * package + 1] < weights[symbols[coin]]);
      is_package[level][size] = take_package;
      list[size++] =
          take_package ? below[2 * package] + below[2 * package + 1] : weights[symbols[coin]];
      ++(take_package ? package : coin);
    }
    std::swap(below, list);
    below_size = size;
  }

  HuffmanLengths lengths = {};
  std::size_t chosen = 2 * m - 2;
  for (int level = limit - 1; level >= 0; --level) {
    std::size_t coins = 0;
    for (std::size_t i = 0; i < chosen; ++i) coins += is_package[level][i] ? 0 : 1;
    for (std::size_t i = 0; i < coins; ++i) ++lengths[symbols[i]];
    chosen = 2 * (chosen - coins);
  }
  return lengths;
}

}  // namespace slimgrad
