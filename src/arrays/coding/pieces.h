// Several payloads in one string of bytes: what one rank sends another in one go.
//
// Bytes: the number of payloads, uint32; the size of each, uint32; the payloads one after the
// other. Both sides know beforehand which pieces of which tensors these are; the reader asks for
// exactly that.
#ifndef SLIMGRAD_ARRAYS_CODING_PIECES_H_
#define SLIMGRAD_ARRAYS_CODING_PIECES_H_

#include <cstdint>
#include <span>
#include <vector>

#include <slimgrad/payload.h>

namespace slimgrad {

// The values as they are, checked like any payload. Returns the size. REQUIRES: encode_bound()
// bytes.
std::size_t store_raw(const TensorView& tensor, std::span<std::uint8_t> out);

// What a piece needs at most while it is coded.
std::uint64_t piece_bound(const TensorView& tensor);
// What comes before the first payload.
constexpr std::size_t piece_table_bytes(std::size_t num_pieces) { return 4 + 4 * num_pieces; }
void write_piece_table(std::span<const std::size_t> sizes, std::uint8_t* out);
// The payloads. Throws PayloadError unless there are as many as expected, and fill `bytes`.
std::vector<std::span<const std::uint8_t>> read_piece_table(std::span<const std::uint8_t> bytes,
                                                            std::size_t num_expected);

// What both sides agreed on for a piece. Besides what was asked for a reader takes what an encoder
// may use instead: values as they are, and what gives back every bit.
struct ExpectedPiece {
  DType dtype;
  std::uint64_t num_values;
  PayloadKind kind;  // kRaw: nothing else
  int bits;          // 0 with a rate
  int exponent_bits, mantissa_bits;
  float rate = 0;         // none
  int k = 64, of = 4096;  // of topk
};
// Throws PayloadError, which says what both are, unless the payload is such a piece.
void check_piece(const PayloadInfo& info, const ExpectedPiece& expected, std::size_t index);

}  // namespace slimgrad

#endif  // SLIMGRAD_ARRAYS_CODING_PIECES_H_
