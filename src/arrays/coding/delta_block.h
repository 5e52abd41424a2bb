// One block of a delta, coded and decoded: formats/delta_values.h has the numbers, docs/format.md
// the bytes.
//
// A block without a change has no bytes. Of any other: if it has kManyDense dense values or more,
// the size of their stream as a varint and the stream, in which four states take turns, for speed;
// then the number of sparse changes as a varint, and a stream of one state with the symbols of the
// dense values, if they are fewer, the gaps of the sparse changes, their slots, and their symbols.
#ifndef SLIMGRAD_ARRAYS_CODING_DELTA_BLOCK_H_
#define SLIMGRAD_ARRAYS_CODING_DELTA_BLOCK_H_

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

inline constexpr std::size_t kManyDense = 4096;
inline constexpr std::size_t kDenseStates = 4;

// Memory of a thread, for blocks of kBlockValues.
class DeltaScratch {
 public:
  std::uint64_t* marks() { return marks_.reserve(delta_format::kBlockValues / 64); }
  std::uint8_t* classes() {
    return classes_.reserve(delta_format::kBlockValues + kernels::kClassMargin);
  }
  std::uint32_t* sums() {
    return sums_.reserve(delta_format::kBlockValues / 8 + 1 + kernels::kSumMargin);
  }
  std::uint8_t* stream(std::size_t size) { return stream_.reserve(size); }
  std::uint32_t* positions(std::size_t size) { return positions_.reserve(size); }
  std::uint16_t* gaps(std::size_t size) { return gaps_.reserve(size); }
  DeltaCounts& counts() { return counts_; }
  std::size_t bytes() const {
    return marks_.bytes() + classes_.bytes() + sums_.bytes() + stream_.bytes() +
           positions_.bytes() + gaps_.bytes();
  }

 private:
  Scratch<std::uint64_t> marks_;
  Scratch<std::uint8_t> classes_, stream_;
  Scratch<std::uint32_t> sums_, positions_;
  Scratch<std::uint16_t> gaps_;
  DeltaCounts counts_;
};

// A sparse change as the encoder keeps it until the table of gaps is known.
struct SparseChange {
  std::uint16_t gap, start;
  std::uint16_t frequency;  // of 2^16, from `start` on
  std::uint8_t context, symbol;
  std::uint64_t extra;
};

struct DenseSymbol {
  std::uint8_t context, symbol;
  std::uint64_t extra;
};

struct CodedBlock {
  std::vector<std::uint8_t> dense_stream;  // of many
  std::vector<DenseSymbol> dense;          // of fewer
  std::vector<SparseChange> sparse;
  bool is_changed = false;
};

// REQUIRES of all: base and changed are blocks of the same number of values, at most kBlockValues.

// Adds the block to the counts: all its changes, and the exponents of all its values, or of 64 in
// every 1024 if `sampled`.
void count_block(std::span<const std::uint8_t> base, std::span<const std::uint8_t> changed,
                 const delta_format::ValueType& type, bool sampled, DeltaScratch& scratch);

// Codes what is dense, lists what is sparse, and adds its gaps to `gaps`.
CodedBlock prepare_block(std::span<const std::uint8_t> base, std::span<const std::uint8_t> changed,
                         const delta_format::ValueType& type, const DeltaCode& code, Weights& gaps,
                         DeltaScratch& scratch);
std::vector<std::uint8_t> finish_block(const CodedBlock& block, const DeltaCode& code,
                                       DeltaScratch& scratch);

// The decoder's side of a DeltaCode.
struct DeltaTables {
  explicit DeltaTables(const DeltaCode& code);

  const DeltaCode& code;
  kernels::Hazards hazards;
  std::vector<kernels::RansDecodeTable> tables;
  std::array<const std::uint32_t*, delta_format::kContexts> slots;
  kernels::RansDecodeTable gaps;
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

}  // namespace slimgrad

#endif  // SLIMGRAD_ARRAYS_CODING_DELTA_BLOCK_H_
