// The header of the delta of a tensor as bytes and back; docs/format.md draws it. Every header has
// exactly one form.
#ifndef SLIMGRAD_FORMATS_DELTA_HEADER_H_
#define SLIMGRAD_FORMATS_DELTA_HEADER_H_

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include <slimgrad/hash128.h>

#include "formats/code_tables.h"
#include "formats/delta_values.h"

namespace slimgrad {

inline constexpr std::array<std::uint8_t, 4> kDeltaMagic = {0x8d, 'S', 'G', 'D'};
inline constexpr std::array<std::uint8_t, 4> kDeltaSetMagic = {0x8d, 'S', 'G', 'M'};
inline constexpr std::uint8_t kDeltaVersion = 1;

// How the blocks are coded.
struct DeltaCode {
  int split = 0;  // exponents up to it are dense; kZeroExponent: all are
  int top = 0;    // where contexts of dense values begin; the split unless all are dense
  std::array<std::uint8_t, delta_format::kClasses> hazard_codes = {};  // that of class 0 is 0
  std::array<std::uint8_t, delta_format::kContexts> table_of = {};     // rises from 0 by 0 or 1
  std::vector<RansFrequencies> tables;
  RansFrequencies gaps;  // if any hazard is not 0

  bool all_dense() const { return split == delta_format::kZeroExponent; }
  bool has_gaps() const;
};

struct DeltaHeader {
  std::uint8_t type = 0;  // in kValueTypes
  std::vector<std::uint64_t> shape;
  Hash128 base, result;
  DeltaCode code;                          // if there are blocks
  std::vector<std::uint32_t> block_bytes;  // none if nothing changed

  const delta_format::ValueType& value_type() const { return delta_format::kValueTypes[type]; }
  std::uint64_t num_values() const;
};

std::vector<std::uint8_t> write_delta_header(const DeltaHeader& header);

// Reads the header and the index of a delta whose checksum has been checked, and makes sure that
// header, blocks and checksum fill it exactly. `header_bytes` is where the first block begins.
// Throws PayloadError; allocates in proportion to the payload.
DeltaHeader parse_delta_header(std::span<const std::uint8_t> payload, std::size_t& header_bytes);

// Throws PayloadError for what cannot be the delta of a tensor, by its first bytes and size.
void check_delta_start(std::span<const std::uint8_t> payload);

}  // namespace slimgrad

#endif  // SLIMGRAD_FORMATS_DELTA_HEADER_H_
