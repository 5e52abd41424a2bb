// Plain C++ that is compiled for several targets, because the shifts of BMI2 make it a third
// faster. The one for the plainest target is the scalar version.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/coding/huffman.cc"
#include <hwy/foreach_target.h>
// After foreach_target, as Highway asks.
#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/coding/huffman.h"
#include "kernels/dispatch.h"

#ifndef SLIMGRAD_KERNELS_HUFFMAN_ONCE_
#define SLIMGRAD_KERNELS_HUFFMAN_ONCE_
namespace slimgrad::kernels::huffman {

static_assert(std::endian::native == std::endian::little, "bits are stored as they are in memory");

constexpr int kPerLoad = 5;  // symbols that one 64-bit word surely holds
constexpr std::size_t kRound = kPerLoad * kHuffmanStreams;
constexpr std::size_t kTileRounds = 96;  // 3072 symbols: they stay in the L1 cache for all streams

// Words enter at the top and push those before them down, so that the first ends up lowest.
struct Writer {
  std::uint64_t bits = 0;   // the highest `count` are those not yet stored
  std::uint64_t count = 0;  // in the lowest byte, below 8 between rounds
  std::uint8_t* next = nullptr;
};
// With the words come their lengths, into the lowest four bits. Four words and seven bits that were
// left over stay above them.
constexpr int kPerStore = 4;
static_assert(7 + kPerStore * kMaxHuffmanBits <= 60);
constexpr std::size_t kWriteRound = kPerStore * kHuffmanStreams;

struct Reader {
  const std::uint8_t* begin;
  const std::uint8_t* end;
  const std::uint8_t* next;
  // The bits from `next` on with a one in the highest place, shifted right by what was consumed:
  // the number of leading zeros is the number of bits consumed since `next`.
  std::uint64_t bits;
};

constexpr std::uint64_t kSentinel = std::uint64_t{1} << 63;

// Splits the bytes into streams; false if the sizes do not fit.
inline bool open(std::span<const std::uint8_t> bytes, Reader (&readers)[kHuffmanStreams]) noexcept {
  if (bytes.size() < kHuffmanSizeBytes) return false;
  const std::uint8_t* next = bytes.data() + kHuffmanSizeBytes;
  const std::uint8_t* const end = bytes.data() + bytes.size();
  for (int s = 0; s < kHuffmanStreams; ++s) {
    std::uint32_t size = 0;
    if (s < kHuffmanStreams - 1)
      std::memcpy(&size, bytes.data() + 4 * s, 4);
    else
      size = static_cast<std::uint32_t>(end - next);
    if (size > static_cast<std::size_t>(end - next)) return false;
    readers[s] = {next, next + size, next, kSentinel};
    next += size;
  }
  return true;
}

// Decodes what is left of one stream bit by bit from position `used`, then checks its end.
inline DecodeStatus finish(const Reader& reader, const HuffmanDecodeTable& table,
                           std::uint8_t* symbols, std::size_t num_symbols) noexcept {
  const std::size_t size = static_cast<std::size_t>(reader.end - reader.begin);
  std::size_t used = 8 * static_cast<std::size_t>(reader.next - reader.begin) +
                     static_cast<std::size_t>(std::countl_zero(reader.bits));
  for (std::size_t i = 0; i < num_symbols; i += kHuffmanStreams) {
    std::uint32_t window = 0;
    for (std::size_t k = 0; k < 3 && used / 8 + k < size; ++k)
      window |= static_cast<std::uint32_t>(reader.begin[used / 8 + k]) << (8 * k);
    const std::uint32_t entry = table.entries[window >> (used % 8) & ((1u << kMaxHuffmanBits) - 1)];
    symbols[i] = static_cast<std::uint8_t>(entry >> 8);
    used += entry & 0xff;
    if (used > 8 * size) return DecodeStatus::kTruncated;
  }
  if ((used + 7) / 8 > size) return DecodeStatus::kTruncated;
  if ((used + 7) / 8 < size) return DecodeStatus::kTrailingBytes;
  if (used % 8 != 0 && reader.end[-1] >> (used % 8) != 0) return DecodeStatus::kBadFinalState;
  return DecodeStatus::kOk;
}

}  // namespace slimgrad::kernels::huffman
#endif  // SLIMGRAD_KERNELS_HUFFMAN_ONCE_

HWY_BEFORE_NAMESPACE();
#define SLIMGRAD_HAS_BMI2 (HWY_ARCH_X86_64 && HWY_TARGET <= HWY_AVX2)
#if SLIMGRAD_HAS_BMI2 && HWY_COMPILER_GCC_ACTUAL
// Highway asks the CPU for LZCNT before it takes such a target, but does not tell the compiler.
#pragma GCC target "lzcnt"
#endif
namespace slimgrad::kernels::huffman::HWY_NAMESPACE {

// One instruction where the mask would take two.
HWY_INLINE std::uint64_t next_bits(std::uint64_t bits) {
#if SLIMGRAD_HAS_BMI2
  return _bzhi_u64(bits, kMaxHuffmanBits);
#else
  return bits % (1u << kMaxHuffmanBits);
#endif
}

HWY_INLINE void put(Writer& w, const HuffmanEncodeTable& table, std::uint8_t symbol) {
  const std::uint64_t entry = table.entries[symbol];
  w.bits = w.bits >> (entry & 63) | entry;  // the bits from 4 to 5 of an entry are 0
  w.count += entry;
}

HWY_INLINE void flush(Writer& w) {
  const std::uint64_t count = w.count & 63;
  const std::uint64_t bits = w.bits >> ((64 - count) & 63);
  std::memcpy(w.next, &bits, 8);
  w.next += count / 8;
  w.count = count % 8;
}

// Rounds of four symbols of each stream, two streams at a time so that their chains overlap.
HWY_INLINE void write_rounds(const std::uint8_t* symbols, std::size_t num_rounds,
                             const HuffmanEncodeTable& table, Writer* writers) {
  for (int s = 0; s < kHuffmanStreams; s += 2) {
    Writer a = writers[s], b = writers[s + 1];
    const std::uint8_t* from = symbols + s;
    for (std::size_t r = 0; r < num_rounds; ++r, from += kWriteRound) {
#pragma GCC unroll 4
      for (int k = 0; k < kPerStore; ++k) {
        put(a, table, from[k * kHuffmanStreams]);
        put(b, table, from[k * kHuffmanStreams + 1]);
      }
      flush(a);
      flush(b);
    }
    writers[s] = a;
    writers[s + 1] = b;
  }
}

std::size_t encode(std::span<const std::uint8_t> symbols, const HuffmanEncodeTable& table,
                   std::span<std::uint8_t> out) {
  const std::size_t room = huffman_stream_bound(symbols.size());
  std::uint8_t* const first = out.data() + kHuffmanSizeBytes;
  Writer writers[kHuffmanStreams];
  for (int s = 0; s < kHuffmanStreams; ++s) writers[s].next = first + s * room;
  const std::size_t rounds = symbols.size() / kWriteRound;
  for (std::size_t r = 0; r < rounds; r += kTileRounds)
    write_rounds(symbols.data() + r * kWriteRound, std::min(kTileRounds, rounds - r), table,
                 writers);
  for (std::size_t i = rounds * kWriteRound; i < symbols.size(); ++i) {
    Writer& w = writers[i % kHuffmanStreams];
    put(w, table, symbols[i]);
    flush(w);
  }
  // Close the gaps between the streams.
  std::uint8_t* next = first;
  for (int s = 0; s < kHuffmanStreams; ++s) {
    const std::uint8_t* const begin = first + s * room;
    const std::size_t size =
        static_cast<std::size_t>(writers[s].next - begin) + (writers[s].count > 0 ? 1 : 0);
    const auto stored_size = static_cast<std::uint32_t>(size);
    if (s < kHuffmanStreams - 1) std::memcpy(out.data() + 4 * s, &stored_size, 4);
    std::memmove(next, begin, size);
    next += size;
  }
  return static_cast<std::size_t>(next - out.data());
}

// Rounds of five symbols of each stream, with one load a stream and round.
HWY_INLINE void read_rounds(Reader (&readers)[kHuffmanStreams], const std::uint16_t* entries,
                            std::size_t num_rounds, std::uint8_t* symbols) {
  std::uint64_t bits[kHuffmanStreams];
  const std::uint8_t* next[kHuffmanStreams];
#pragma GCC unroll 8
  for (int s = 0; s < kHuffmanStreams; ++s) bits[s] = readers[s].bits, next[s] = readers[s].next;
  for (std::size_t r = 0; r < num_rounds; ++r, symbols += kRound) {
#pragma GCC unroll 8
    for (int s = 0; s < kHuffmanStreams; ++s) {
      const int used = __builtin_clzll(bits[s]);  // never of 0: the sentinel is there
      next[s] += used / 8;
      std::memcpy(&bits[s], next[s], 8);
      bits[s] = (bits[s] | kSentinel) >> (used % 8);
    }
#pragma GCC unroll 5
    for (int k = 0; k < kPerLoad; ++k)
#pragma GCC unroll 8
      for (int s = 0; s < kHuffmanStreams; ++s) {
        const std::uint32_t entry = entries[next_bits(bits[s])];
        bits[s] >>= entry & 63;
        symbols[k * kHuffmanStreams + s] = static_cast<std::uint8_t>(entry >> 8);
      }
  }
#pragma GCC unroll 8
  for (int s = 0; s < kHuffmanStreams; ++s) readers[s].bits = bits[s], readers[s].next = next[s];
}

DecodeStatus decode(std::span<const std::uint8_t> bytes, const HuffmanDecodeTable& table,
                    std::span<std::uint8_t> symbols) {
  Reader readers[kHuffmanStreams];
  if (!open(bytes, readers)) return DecodeStatus::kTruncated;
  const std::uint8_t* const end = bytes.data() + bytes.size();
  std::size_t done = 0;
  // A round loads eight bytes after moving on by at most seven (7 + 55 bits). A damaged stream may
  // run into the next one, but while every load is known to end before the last byte that is
  // harmless; each stream's own end is checked when it is finished.
  while (true) {
    std::ptrdiff_t safe = (end - readers[0].next - 8) / 7;
    for (const Reader& reader : readers) safe = std::min(safe, (end - reader.next - 8) / 7);
    const std::size_t rounds =
        std::min((symbols.size() - done) / kRound,
                 static_cast<std::size_t>(std::max<std::ptrdiff_t>(safe, 0)));
    if (rounds == 0) break;
    read_rounds(readers, table.entries.data(), rounds, symbols.data() + done);
    done += rounds * kRound;
  }
  for (int s = 0; s < kHuffmanStreams; ++s) {
    const std::size_t first = std::min(done + static_cast<std::size_t>(s), symbols.size());
    const DecodeStatus status =
        finish(readers[s], table, symbols.data() + first, symbols.size() - first);
    if (status != DecodeStatus::kOk) return status;
  }
  return DecodeStatus::kOk;
}

}  // namespace slimgrad::kernels::huffman::HWY_NAMESPACE
#undef SLIMGRAD_HAS_BMI2
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace slimgrad::kernels {
namespace huffman {
HWY_EXPORT(encode);
HWY_EXPORT(decode);
}  // namespace huffman

std::size_t huffman_encode(std::span<const std::uint8_t> symbols, const HuffmanEncodeTable& table,
                           std::span<std::uint8_t> out) noexcept {
  using namespace huffman;
  if (use_scalar()) return HWY_STATIC_DISPATCH(encode)(symbols, table, out);
  return HWY_DYNAMIC_DISPATCH(encode)(symbols, table, out);
}

DecodeStatus huffman_decode(std::span<const std::uint8_t> bytes, const HuffmanDecodeTable& table,
                            std::span<std::uint8_t> symbols) noexcept {
  using namespace huffman;
  if (use_scalar()) return HWY_STATIC_DISPATCH(decode)(bytes, table, symbols);
  return HWY_DYNAMIC_DISPATCH(decode)(bytes, table, symbols);
}

}  // namespace slimgrad::kernels
#endif  // HWY_ONCE
