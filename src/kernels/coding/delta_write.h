// What an encoder does with a lane of a delta once it is known which values changed: lists them as
// symbols, and writes their stream when the tables are known (formats/delta_values.h).
// noexcept, no allocation, any thread; the same on every CPU.
#ifndef SLIMGRAD_KERNELS_CODING_DELTA_WRITE_H_
#define SLIMGRAD_KERNELS_CODING_DELTA_WRITE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "formats/delta_values.h"
#include "kernels/coding/delta_scan.h"
#include "kernels/coding/wide_rans.h"

namespace slimgrad::kernels {

// A symbol of a dense value, or of a sparse change, with its gap and slot. Raw bits lie beside it.
struct KeptSymbol {
  std::uint8_t context, symbol;
  std::uint16_t gap = 0, start = 0;
  std::uint16_t frequency = 0;  // of 2^16, from `start` on; 0 for a dense value
};

// The values of a lane before and after, and which are listed.
struct ListedValues {
  const std::uint8_t *base, *changed;
  const delta_format::ValueType& type;
  const std::uint32_t* positions;  // null for all values, in order
  std::size_t count;
};

// Write `count` symbols, and to `extras`, which has room for as many, the raw bits of those that
// have some; return where these end.
std::uint64_t* list_dense(const ListedValues& values, int top, KeptSymbol* kept,
                          std::uint64_t* extras) noexcept;
// `classes` and `sums` of the base, as in delta_scan.h. REQUIRES positions.
std::uint64_t* list_sparse(const ListedValues& values, const std::uint8_t* classes,
                           const std::uint32_t* sums, const Hazards& hazards, KeptSymbol* kept,
                           std::uint64_t* extras) noexcept;

using SymbolTable = std::array<WideSymbol, 256>;
struct WriteTables {
  std::array<const SymbolTable*, delta_format::kContexts> symbols = {};
  const SymbolTable* gaps = nullptr;
  std::array<WideFrequency, delta_format::kContexts> slots;  // of whole hazards
};

// Steps of the coder that a symbol takes at most: 62 bits as they are, then its own; a sparse
// change also has its slot, raw bits of its gap and the gap.
inline constexpr std::size_t kSymbolSteps = 5, kChangeSteps = kSymbolSteps + 3;

// What is left to write of a lane, in the order in which it is read: dense values, then sparse
// changes. REQUIRES: room in front of `end` for a word a step, and eight bytes.
struct WriteLane {
  std::span<const KeptSymbol> symbols;
  const std::uint64_t* extras_end = nullptr;  // what is behind the last raw bits
  std::uint8_t* end = nullptr;
  WideRansEncoder coder;
};

// Lanes take turns, as in decode_changes().
void write_symbols(std::span<WriteLane> lanes, const WriteTables& tables) noexcept;

}  // namespace slimgrad::kernels

#endif  // SLIMGRAD_KERNELS_CODING_DELTA_WRITE_H_
