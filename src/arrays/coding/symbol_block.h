// Blocks of 8-bit symbols as bytes and back: the unit in which payloads are coded. A block needs
// nothing but its bytes, the number of its symbols and, where both sides agreed on one, a shared
// table; so blocks can be coded on several threads, decoded from the middle, and cost bounded
// memory.
//
// Bytes of a block of n symbols: the method, then
//   0 raw       the symbols
//   1 constant  the one symbol
//   2 rans      table (formats/code_tables.h), escapes, streams (kernels/coding/rans.h)
//   3 huffman   table (formats/code_tables.h), streams (kernels/coding/huffman.h)
//   4 sparse    the commonest symbol, the size of the mask block (uint32), mask block, others block
//               (kernels/coding/zero_mask.h): both are blocks themselves, sparse at most
//               kMaxSparseDepth deep
//   5 packed    bits a symbol, the symbols without gaps (formats/bit_packing.h)
// 2 and 3 plus 16: the shared table is used and none follows. 2 plus 32: two rANS streams instead
// of one, the size of the first (uint32) in front, the first with the first n / 64 * 32 symbols;
// two are decoded together, faster. If the table has an escape, the escapes are their number
// (uint32) and their values (kernels/coding/escapes.h); otherwise nothing. 2 plus 64: instead of
// escapes, which the table then may not have, the number of placed symbols (uint32), their values
// and their gaps. Integers are little-endian. No block is longer than n + 1 bytes.
//
// An encoder or decoder keeps its scratch memory from block to block: use one per thread.
#ifndef SLIMGRAD_ARRAYS_CODING_SYMBOL_BLOCK_H_
#define SLIMGRAD_ARRAYS_CODING_SYMBOL_BLOCK_H_

#include <memory>
#include <span>
#include <vector>

#include <slimgrad/payload.h>

#include "formats/code_tables.h"
#include "math/coding/frequencies.h"

namespace slimgrad {

inline constexpr std::size_t kDefaultBlockSymbols = 256 * 1024;
inline constexpr std::size_t kMaxBlockSymbols = 16 * 1024 * 1024;
// From this coded size on a block has two streams; below, 128 bytes more of states would show.
inline constexpr std::size_t kPairedBytes = 60 * 1024;
// From this coded size on rare symbols travel with their places, which takes some 130 bytes more
// than escapes and saves the decoder a look at every symbol.
inline constexpr std::size_t kPlacedBytes = 128 * 1024;
inline constexpr int kMaxSparseDepth = 3;

// A table that both sides know: counted over a whole tensor, computed from a model, or given. A
// block with a symbol that it has no code for falls back to its own table.
struct SharedTable {
  RansFrequencies frequencies;
  HuffmanLengths lengths;
};

// Throws InvalidArgument if fewer than two symbols have a weight or the sum is 2^52 or more.
SharedTable make_shared_table(const Weights& weights);

// How many symbols of a large block are counted for its frequencies: 64 Ki or 128 Ki. The larger
// sample makes the code some hundredths of a percent shorter, and takes longer to count.
enum class SampleSize { kSmall, kLarge };

class BlockEncoder {
 public:
  // `shared` may be null, and otherwise must outlive the encoder. Without an entropy coder symbols
  // are packed, which must be below 2^bits.
  explicit BlockEncoder(EntropyCoder coder, const SharedTable* shared = nullptr, int bits = 8);
  ~BlockEncoder();

  // The block's bytes, valid until the next call. Throws InvalidArgument above kMaxBlockSymbols.
  std::span<const std::uint8_t> encode(std::span<const std::uint8_t> symbols,
                                       SampleSize sample_size = SampleSize::kSmall);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

class BlockDecoder {
 public:
  explicit BlockDecoder(const SharedTable* shared = nullptr);
  ~BlockDecoder();

  // Fills `symbols` from exactly `bytes`, which may hold anything. Allocates in proportion to
  // symbols.size() only. On a status other than kOk the symbols are unspecified.
  DecodeStatus decode(std::span<const std::uint8_t> bytes, std::span<std::uint8_t> symbols);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace slimgrad

#endif  // SLIMGRAD_ARRAYS_CODING_SYMBOL_BLOCK_H_
