// From counts to how a delta is coded: which exponents are dense, the hazards of the other classes,
// and the tables of symbols.
#ifndef SLIMGRAD_ARRAYS_CODING_DELTA_CODE_H_
#define SLIMGRAD_ARRAYS_CODING_DELTA_CODE_H_

#include <array>
#include <cstdint>
#include <vector>

#include "formats/delta_header.h"
#include "kernels/coding/delta_scan.h"
#include "math/coding/huffman_lengths.h"

namespace slimgrad {

// Counts of a tensor, by the exponent of the base.
struct DeltaCounts {
  std::array<std::uint64_t, 256> values = {};  // of all, or of a sample
  std::uint64_t num_sampled = 0;               // the sum of `values`
  std::vector<std::array<std::uint32_t, 256>> changes =
      std::vector<std::array<std::uint32_t, 256>>(256);  // by symbol, all of them
  std::array<bool, 256> has_changes = {};                // few exponents have any

  void add_change(int exponent, std::uint8_t symbol) {
    const auto e = static_cast<std::size_t>(exponent);
    has_changes[e] = true;
    ++changes[e][symbol];
  }
  void add(const DeltaCounts& other);
  void clear();
};

// All but the table of gaps, which depends on the hazards. The same on every machine.
DeltaCode choose_code(const DeltaCounts& counts, std::uint64_t num_values);

// The table for these weights. Symbols without one have no code; if fewer than two have one, the
// symbols 0 and 1 get one.
RansFrequencies table_for(Weights weights);

kernels::Hazards hazards_of(const DeltaCode& code);

}  // namespace slimgrad

#endif  // SLIMGRAD_ARRAYS_CODING_DELTA_CODE_H_
