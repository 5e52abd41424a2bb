// Symbols for the tests of the coders.
#ifndef SLIMGRAD_TESTS_ARRAYS_CODING_SYMBOLS_H_
#define SLIMGRAD_TESTS_ARRAYS_CODING_SYMBOLS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "for_each_target.h"

namespace slimgrad {

// Codes of a generalized normal sample under a mid-tread quantizer whose range is the sample's; the
// smallest `pruned` of the magnitudes become zero, which is code 128.
inline std::vector<std::uint8_t> gennorm_codes(double shape, std::size_t n, double pruned = 0.0,
                                               std::uint64_t seed = 1) {
  std::mt19937_64 random(seed);
  std::gamma_distribution<double> gamma(1.0 / shape, 1.0);
  std::vector<double> magnitudes(n);
  for (double& x : magnitudes) x = std::pow(gamma(random), 1.0 / shape);
  std::vector<double> sorted = magnitudes;
  std::sort(sorted.begin(), sorted.end());
  std::vector<std::uint8_t> codes(n);
  for (std::size_t i = 0; i < n; ++i) {
    const bool zero = pruned > 0.0 && magnitudes[i] < sorted[static_cast<std::size_t>(pruned * n)];
    const int level = zero ? 0 : static_cast<int>(std::lround(magnitudes[i] / sorted.back() * 127));
    codes[i] = static_cast<std::uint8_t>(128 + (random() & 1 ? level : -level));
  }
  return codes;
}

// n symbols from an alphabet of the given size.
inline std::vector<std::uint8_t> uniform_codes(int alphabet, std::size_t n,
                                               std::uint64_t seed = 1) {
  std::mt19937_64 random(seed);
  std::vector<std::uint8_t> codes(n);
  for (std::uint8_t& code : codes)
    code = static_cast<std::uint8_t>(random() % static_cast<std::uint64_t>(alphabet) *
                                     (256 / static_cast<unsigned>(alphabet)));
  return codes;
}

}  // namespace slimgrad

#endif  // SLIMGRAD_TESTS_ARRAYS_CODING_SYMBOLS_H_
