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
#include "kernels/coding/rans.h"

namespace slimgrad {

// A symbol as the encoder keeps it until its table is known: of a dense value, or of a sparse
// change, with its gap and slot. Raw bits are kept beside it.
struct KeptSymbol {
  std::uint8_t context, symbol;
  std::uint16_t gap = 0, start = 0;
  std::uint16_t frequency = 0;  // of 2^16, from `start` on
};

// Memory of a thread, for blocks of kBlockValues.
class DeltaScratch {
 public:
  std::uint64_t* marks() { return marks_.reserve(delta_format::kLaneValues / 64); }
  std::uint64_t* dense_marks() { return dense_marks_.reserve(delta_format::kLaneValues / 64); }
  std::uint8_t* classes(std::size_t lane) {
    constexpr std::size_t kSize = delta_format::kLaneValues + kernels::kClassMargin;
    return classes_.reserve(delta_format::kMostLanes * kSize) + lane * kSize;
  }
  std::uint32_t* sums(std::size_t lane) {
    constexpr std::size_t kSize = delta_format::kLaneValues / 8 + 1 + kernels::kSumMargin;
    return sums_.reserve(delta_format::kMostLanes * kSize) + lane * kSize;
  }
  std::uint32_t* positions(std::size_t lane) {
    return positions_.reserve(delta_format::kBlockValues) + lane * delta_format::kLaneValues;
  }
  std::uint8_t* stream(std::size_t size) { return stream_.reserve(size); }
  KeptSymbol* kept() { return kept_.reserve(delta_format::kLaneValues); }
  kernels::DeltaChange* changes(std::size_t size) { return changes_.reserve(size); }
  std::size_t bytes() const {
    return marks_.bytes() + dense_marks_.bytes() + classes_.bytes() + sums_.bytes() +
           positions_.bytes() + stream_.bytes() + kept_.bytes() + changes_.bytes();
  }

 private:
  Scratch<std::uint64_t> marks_, dense_marks_;
  Scratch<std::uint8_t> classes_, stream_;
  Scratch<std::uint32_t> sums_, positions_;
  Scratch<KeptSymbol> kept_;
  Scratch<kernels::DeltaChange> changes_;
};

struct CodedLane {
  std::vector<KeptSymbol> dense, sparse;                 // dense is empty if all values are
  std::vector<std::uint64_t> dense_extra, sparse_extra;  // of those symbols that have raw bits
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

  using Table = std::array<kernels::WideSymbol, 256>;
  std::vector<Table> tables;
  std::array<const Table*, delta_format::kContexts> of_context = {};
  Table gaps;
  std::array<kernels::WideFrequency, delta_format::kContexts> slots;  // of whole hazards
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
  std::array<const std::uint32_t*, 256> dense = {};  // by exponent
  kernels::ChangeTables sparse;
};

// What was in a block before it was decoded in place.
struct DeltaUndo {
  std::vector<std::uint32_t> positions;  // none: `values` is the block
  std::vector<std::uint8_t> values;
};

// Writes the changed values of the block, and no others: `values` is a copy of the base, or the
// base itself, in which case `undo` is not null. The base may be any values: whatever a wrong one
// leads to, only the block is written.
DecodeStatus decode_block(std::span<const std::uint8_t> bytes, std::span<std::uint8_t> values,
                          const delta_format::ValueType& type, const DeltaTables& tables,
                          DeltaScratch& scratch, DeltaUndo* undo);
void undo_block(const DeltaUndo& undo, std::size_t width, std::span<std::uint8_t> values);

// A lane of a block.
template <typename T>
std::span<T> lane_of(std::span<T> block, std::size_t width, std::size_t lane) {
  const std::size_t first = lane * width * delta_format::kLaneValues;
  return block.subspan(first, std::min(width * delta_format::kLaneValues, block.size() - first));
}

}  // namespace slimgrad

#endif  // SLIMGRAD_ARRAYS_CODING_DELTA_BLOCK_H_
