// One block of a delta, coded and decoded: formats/delta_values.h has the numbers, docs/format.md
// the bytes.
//
// A block without a change has no bytes. Any other has the size of every lane's stream as a varint,
// and the streams. That of a lane without a change is empty; any other has the number of its sparse
// changes as a varint, unless all values are dense, and what one coder wrote: the symbols of the
// dense values, then of every sparse change its gap, its slot and its symbol. If that is nothing at
// all, a zero byte stands for it.
#ifndef SLIMGRAD_ARRAYS_CODING_DELTA_BLOCK_H_
#define SLIMGRAD_ARRAYS_CODING_DELTA_BLOCK_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "arrays/coding/delta_code.h"
#include "base/scratch.h"
#include "formats/delta_header.h"
#include "kernels/coding/delta_scan.h"
#include "kernels/coding/delta_write.h"
#include "kernels/coding/rans.h"

namespace slimgrad {

// Memory of a thread, for blocks of kBlockValues.
class DeltaScratch {
 public:
  std::uint64_t* marks() { return marks_.reserve(delta_format::kLaneValues / 64); }
  std::uint64_t* dense_marks() { return dense_marks_.reserve(delta_format::kLaneValues / 64); }
  std::uint8_t* classes(std::size_t lane) {
    constexpr std::size_t kSize = delta_format::kLaneValues + kernels::kClassMargin;
    return classes_.reserve(kernels::kMostTurns * kSize) + lane * kSize;
  }
  std::uint32_t* sums(std::size_t lane) {
    constexpr std::size_t kSize = delta_format::kLaneValues / 8 + 1 + kernels::kSumMargin;
    return sums_.reserve(kernels::kMostTurns * kSize) + lane * kSize;
  }
  std::uint32_t* positions(std::size_t lane) {
    constexpr std::size_t kSize = delta_format::kLaneValues + kernels::kMarkMargin;
    return positions_.reserve(kernels::kMostTurns * kSize) + lane * kSize;
  }
  // The symbols of a lane, and their raw bits.
  kernels::KeptSymbol* kept(std::size_t lane) {
    return kept_.reserve(kernels::kMostTurns * delta_format::kLaneValues) +
           lane * delta_format::kLaneValues;
  }
  std::uint64_t* extras(std::size_t lane) {
    constexpr std::size_t kSize = delta_format::kLaneValues + 1;
    return extras_.reserve(kernels::kMostTurns * kSize) + lane * kSize;
  }
  std::uint8_t* stream(std::size_t size) { return stream_.reserve(size); }
  kernels::DeltaChange* changes(std::size_t size) { return changes_.reserve(size); }
  std::size_t bytes() const {
    return marks_.bytes() + dense_marks_.bytes() + classes_.bytes() + sums_.bytes() +
           positions_.bytes() + kept_.bytes() + extras_.bytes() + stream_.bytes() +
           changes_.bytes();
  }

 private:
  Scratch<std::uint64_t> marks_, dense_marks_, extras_;
  Scratch<std::uint8_t> classes_, stream_;
  Scratch<std::uint32_t> sums_, positions_;
  Scratch<kernels::KeptSymbol> kept_;
  Scratch<kernels::DeltaChange> changes_;
};

// What is coded of a lane: dense values, then sparse changes. Of a tensor that is dense throughout
// nothing is kept but whether it changed: that would be several times the tensor.
struct CodedLane {
  std::vector<kernels::KeptSymbol> symbols;
  std::vector<std::uint64_t> extras;  // raw bits, of those symbols that have some
  std::size_t num_sparse = 0;
  bool is_changed = false;
};
using CodedBlock = std::array<CodedLane, delta_format::kMostLanes>;

// How often each symbol comes, for the tables.
struct SymbolCounts {
  std::array<Weights, delta_format::kContexts> by_context = {};
  Weights gaps = {};

  void add(const SymbolCounts& other);
};

// The encoder's side of a DeltaCode with its tables.
struct DeltaEncodeTables {
  explicit DeltaEncodeTables(const DeltaCode& code);

  std::vector<kernels::SymbolTable> tables;
  kernels::SymbolTable gaps;
  kernels::WriteTables by_context;
};

// REQUIRES of all: base and changed are blocks, or lanes, of the same number of values.

// Adds the 64 values at the beginning of every `step` to the counts.
void count_sample(std::span<const std::uint8_t> base, std::span<const std::uint8_t> changed,
                  const delta_format::ValueType& type, std::size_t step, DeltaCounts& counts);

// Lists what is coded of a lane, and counts it. `code` has no tables yet.
CodedLane list_lane(std::span<const std::uint8_t> base, std::span<const std::uint8_t> changed,
                    const delta_format::ValueType& type, const DeltaCode& code,
                    SymbolCounts& counts, DeltaScratch& scratch);

std::vector<std::uint8_t> code_block(std::span<const std::uint8_t> base,
                                     std::span<const std::uint8_t> changed,
                                     const delta_format::ValueType& type, const CodedBlock& block,
                                     const DeltaCode& code, const DeltaEncodeTables& tables,
                                     DeltaScratch& scratch);

// The decoder's side of a DeltaCode.
struct DeltaTables {
  explicit DeltaTables(const DeltaCode& code);

  const DeltaCode& code;
  std::vector<kernels::RansDecodeTable> tables;
  kernels::RansDecodeTable gap_table;
  kernels::ChangeTables by_context;
};

// What was in blocks before they were decoded in place.
struct DeltaUndo {
  std::vector<std::uint32_t> positions;  // none: `values` is all of them
  std::vector<std::uint8_t> values;
};

// Blocks that are decoded together, so that their lanes take turns.
inline constexpr std::size_t kBlocksAtOnce = kernels::kMostTurns / delta_format::kMostLanes;

// Writes the changed values of blocks that follow one another, and no others: `values` is a copy of
// the base, or the base itself, in which case `undo` is not null. The base may be any values:
// whatever a wrong one leads to, only the blocks are written. REQUIRES: at most kBlocksAtOnce.
DecodeStatus decode_blocks(std::span<const std::span<const std::uint8_t>> blocks,
                           std::span<std::uint8_t> values, const delta_format::ValueType& type,
                           const DeltaTables& tables, DeltaScratch& scratch, DeltaUndo* undo);
void undo_blocks(const DeltaUndo& undo, std::size_t width, std::span<std::uint8_t> values);

// A lane of blocks that follow one another.
template <typename T>
std::span<T> lane_of(std::span<T> blocks, std::size_t width, std::size_t lane) {
  const std::size_t first = lane * width * delta_format::kLaneValues;
  return blocks.subspan(first, std::min(width * delta_format::kLaneValues, blocks.size() - first));
}

}  // namespace slimgrad

#endif  // SLIMGRAD_ARRAYS_CODING_DELTA_BLOCK_H_
