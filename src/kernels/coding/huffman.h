// Huffman coding of 8-bit symbols with code words of at most 11 bits, in eight interleaved streams.
//
// Symbol j goes to stream j mod 8. A stream is a sequence of bits, the first in the lowest bit of
// the first byte; code words are stored with their first bit lowest, and the last byte is filled
// with zeros. Eight streams give the decoder eight independent chains of table look-ups, and
// because they are interleaved symbol by symbol it has one output pointer, not eight.
//
// Bytes: the sizes of the first seven streams as little-endian uint32, then the eight streams.
// noexcept, no allocation, any thread; the same bytes on every CPU.
#ifndef SLIMGRAD_KERNELS_CODING_HUFFMAN_H_
#define SLIMGRAD_KERNELS_CODING_HUFFMAN_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "formats/code_tables.h"

namespace slimgrad::kernels {

inline constexpr int kHuffmanStreams = 8;
inline constexpr std::size_t kHuffmanSizeBytes = 4 * (kHuffmanStreams - 1);

struct HuffmanEncodeTable {
  // The code word, its last bit highest, in the highest bits; its length in the lowest ones. So one
  // load has both, and an accumulator can be shifted by it, OR-ed with it and counted with it.
  alignas(64) std::array<std::uint64_t, 256> entries;
};

struct HuffmanDecodeTable {
  // For the next 11 bits: length of the code word that they begin with | symbol << 8.
  alignas(64) std::array<std::uint16_t, 1 << kMaxHuffmanBits> entries;
};

// Canonical code: words in order of length, then of symbol, count upwards. REQUIRES: is_valid.
void build_encode_table(const HuffmanLengths& lengths, HuffmanEncodeTable& table) noexcept;
void build_decode_table(const HuffmanLengths& lengths, HuffmanDecodeTable& table) noexcept;

// The room that one stream, and all of them, may need while being written.
constexpr std::size_t huffman_stream_bound(std::size_t num_symbols) {
  return (num_symbols / kHuffmanStreams + 1) * kMaxHuffmanBits / 8 + 16;
}
constexpr std::size_t huffman_encode_bound(std::size_t num_symbols) {
  return kHuffmanSizeBytes + kHuffmanStreams * huffman_stream_bound(num_symbols);
}

// Returns the number of bytes written to `out`. REQUIRES: out has huffman_encode_bound() bytes;
// every symbol that occurs has a code word; fewer than 2^32 symbols.
std::size_t huffman_encode(std::span<const std::uint8_t> symbols, const HuffmanEncodeTable& table,
                           std::span<std::uint8_t> out) noexcept;

// Fills `symbols` from exactly `bytes`. On a status other than kOk the symbols are unspecified.
DecodeStatus huffman_decode(std::span<const std::uint8_t> bytes, const HuffmanDecodeTable& table,
                            std::span<std::uint8_t> symbols) noexcept;

}  // namespace slimgrad::kernels

#endif  // SLIMGRAD_KERNELS_CODING_HUFFMAN_H_
