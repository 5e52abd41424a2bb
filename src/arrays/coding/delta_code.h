// From counts to how a delta is coded: from a sample which exponents are dense and the hazards of
// the other classes, from all that is coded then the tables of symbols.
#ifndef SLIMGRAD_ARRAYS_CODING_DELTA_CODE_H_
#define SLIMGRAD_ARRAYS_CODING_DELTA_CODE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "formats/delta_header.h"
#include "kernels/coding/delta_scan.h"
#include "math/coding/huffman_lengths.h"

namespace slimgrad {

// Counts of values, by the exponent of the base: of all of a tensor, or of a sample.
struct DeltaCounts {
  std::array<std::uint64_t, 256> values = {};
  std::uint64_t num_sampled = 0;                                             // the sum of `values`
  std::array<std::unique_ptr<std::array<std::uint32_t, 256>>, 256> changes;  // by symbol, or null

  std::array<std::uint32_t, 256>& changes_of(std::size_t exponent) {
    if (!changes[exponent]) changes[exponent] = std::make_unique<std::array<std::uint32_t, 256>>();
    return *changes[exponent];
  }
  void add(const DeltaCounts& other);
  std::uint64_t num_changes() const;
};

// All but the tables. The same on every machine, as is what follows.
DeltaCode choose_code(const DeltaCounts& counts, std::uint64_t num_values);

// Tables for these counts, by context, and of gaps. A table has codes for what was counted alone;
// at least for two symbols.
void choose_tables(std::span<const Weights, delta_format::kContexts> contexts, const Weights& gaps,
                   DeltaCode& code);

kernels::Hazards hazards_of(const DeltaCode& code);

}  // namespace slimgrad

#endif  // SLIMGRAD_ARRAYS_CODING_DELTA_CODE_H_
