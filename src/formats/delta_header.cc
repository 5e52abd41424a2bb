#include "formats/delta_header.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "formats/header_bytes.h"
#include "formats/payload_header.h"

namespace slimgrad {
namespace {

using namespace delta_format;
using namespace header_bytes;

// Magic, version, type, number of dimensions, two hashes, whether there are blocks; checksum.
constexpr std::size_t kMinDeltaBytes = 4 + 1 + 1 + 1 + 32 + 1 + kChecksumBytes;
constexpr std::size_t kMaxTableBytes = (25 + 256 * 36 + 7) / 8;  // of write_frequencies()
constexpr int kHazardBits = 6;

void write_hash(const Hash128& hash, Writer& out) {
  out.fixed(hash.low, 8);
  out.fixed(hash.high, 8);
}
Hash128 read_hash(Reader& in) {
  const std::uint64_t low = in.fixed(8);
  return {low, in.fixed(8)};
}

// Contexts that a code has: all, or, if all values are dense, the first 16.
int num_contexts(const DeltaCode& code) { return code.all_dense() ? kDenseContexts : kContexts; }

void write_table(const RansFrequencies& table, Writer& out) {
  std::array<std::uint8_t, kMaxTableBytes> bytes;
  BitWriter bits(bytes);
  write_frequencies(table, bits);
  for (std::size_t i = 0; i < bits.num_bytes(); ++i) out.byte(bytes[i]);
}

RansFrequencies read_table(Reader& in) {
  RansFrequencies table;
  BitReader bits(in.rest());
  if (!read_frequencies(bits, table) || table.has_escape()) bad_header("an invalid table");
  in.skip(bits.num_bytes());
  return table;
}

void write_code(const DeltaCode& code, Writer& out) {
  out.byte(static_cast<std::uint64_t>(code.split));
  if (code.all_dense()) out.byte(static_cast<std::uint64_t>(code.top));
  std::array<std::uint8_t, 16> bytes;
  BitWriter bits(bytes);
  if (!code.all_dense())
    for (int c = 1; c < kClasses; ++c) bits.put(code.hazard_codes[c], kHazardBits);
  for (int c = 1; c < num_contexts(code); ++c) bits.put(code.table_of[c] - code.table_of[c - 1], 1);
  for (std::size_t i = 0; i < bits.num_bytes(); ++i) out.byte(bytes[i]);
  for (const RansFrequencies& table : code.tables) write_table(table, out);
  if (code.has_gaps()) write_table(code.gaps, out);
}

DeltaCode read_code(Reader& in) {
  DeltaCode code;
  code.split = in.byte();
  code.top = code.all_dense() ? in.byte() : code.split;
  BitReader bits(in.rest());
  if (!code.all_dense())
    for (int c = 1; c < kClasses; ++c) {
      code.hazard_codes[c] = static_cast<std::uint8_t>(bits.get(kHazardBits));
      if (code.hazard_codes[c] > kMaxHazardCode) bad_header("a hazard that is too large");
    }
  for (int c = 1; c < num_contexts(code); ++c)
    code.table_of[c] = static_cast<std::uint8_t>(code.table_of[c - 1] + bits.get(1));
  if (!bits.ends_in_zeros()) bad_header("bits that no writer sets");
  in.skip(bits.num_bytes());
  for (int i = 0; i <= code.table_of[num_contexts(code) - 1]; ++i)
    code.tables.push_back(read_table(in));
  if (!code.has_gaps()) return code;
  code.gaps = read_table(in);
  for (int s = kMaxGapSymbol + 1; s < 256; ++s)
    if (code.gaps.frequency[s] != 0) bad_header("a gap that is too large");
  return code;
}

void read_shape(Reader& in, DeltaHeader& header) {
  const int num_dims = in.within(0, static_cast<int>(kMaxShapeLengths), "dimensions");
  for (int i = 0; i < num_dims; ++i) header.shape.push_back(in.varint());
  if (std::ranges::find(header.shape, 0u) != header.shape.end()) return;
  std::uint64_t bytes = header.value_type().width;
  for (const std::uint64_t length : header.shape)
    if (__builtin_mul_overflow(bytes, length, &bytes) || bytes > kMaxTensorBytes)
      bad_header("a shape of more than 2^60 bytes");
}

void read_index(Reader& in, DeltaHeader& header) {
  const std::uint64_t num_blocks = (header.num_values() + kBlockValues - 1) >> kBlockLog2;
  if (num_blocks > in.left())
    fail(PayloadErrorCode::kTruncated,
         "a shape of " + std::to_string(num_blocks) + " blocks, more than the delta has room for");
  std::uint64_t sum = 0;
  header.block_bytes.resize(num_blocks);
  for (std::uint32_t& size : header.block_bytes) {
    const std::uint64_t varint = in.varint();
    if (varint >> 32 != 0) bad_header("a block of 2^32 bytes or more");
    size = static_cast<std::uint32_t>(varint);
    sum += size;
  }
  if (in.left() != sum)
    fail(in.left() < sum ? PayloadErrorCode::kTruncated : PayloadErrorCode::kTrailingBytes,
         "the index announces " + std::to_string(sum) + " bytes of blocks, the delta has " +
             std::to_string(in.left()));
}

}  // namespace

std::string hash_text(const Hash128& hash) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::uint64_t half : {hash.high, hash.low})
    for (int shift = 60; shift >= 0; shift -= 4) text += kDigits[half >> shift & 15];
  return text;
}

bool DeltaCode::has_gaps() const {
  return std::ranges::any_of(hazard_codes, [](std::uint8_t code) { return code != 0; });
}

std::uint64_t DeltaHeader::num_values() const {
  return std::accumulate(shape.begin(), shape.end(), std::uint64_t{1}, std::multiplies<>());
}

std::vector<std::uint8_t> write_delta_header(const DeltaHeader& header) {
  Writer out;
  for (const std::uint8_t byte : kDeltaMagic) out.byte(byte);
  out.byte(kDeltaVersion);
  out.byte(header.type);
  out.byte(header.shape.size());
  for (const std::uint64_t length : header.shape) out.varint(length);
  write_hash(header.base, out);
  write_hash(header.result, out);
  out.byte(header.block_bytes.empty() ? 0 : 1);
  if (header.block_bytes.empty()) return out.take();
  write_code(header.code, out);
  for (const std::uint32_t size : header.block_bytes) out.varint(size);
  return out.take();
}

void check_delta_start(std::span<const std::uint8_t> payload) {
  if (payload.size() < kMinDeltaBytes)
    fail(PayloadErrorCode::kTooShort, "expected a delta of at least " +
                                          std::to_string(kMinDeltaBytes) + " bytes, got " +
                                          std::to_string(payload.size()));
  if (std::equal(kDeltaSetMagic.begin(), kDeltaSetMagic.end(), payload.begin()))
    fail(PayloadErrorCode::kBadMagic, "the delta of several tensors, not of one");
  if (!std::equal(kDeltaMagic.begin(), kDeltaMagic.end(), payload.begin()))
    fail(PayloadErrorCode::kBadMagic, "not a delta of slimgrad (the magic bytes are missing)");
  if (payload[4] != kDeltaVersion)
    fail(PayloadErrorCode::kBadVersion, "a delta of version " + std::to_string(payload[4]) +
                                            ", this library reads version " +
                                            std::to_string(kDeltaVersion));
}

DeltaHeader parse_delta_header(std::span<const std::uint8_t> payload, std::size_t& header_bytes) {
  check_delta_start(payload);
  Reader in(payload.first(payload.size() - kChecksumBytes));
  in.fixed(5);  // checked already
  DeltaHeader header;
  header.type = static_cast<std::uint8_t>(
      in.within(0, static_cast<int>(kValueTypes.size()) - 1, "as the code of a type"));
  read_shape(in, header);
  header.base = read_hash(in);
  header.result = read_hash(in);
  if (in.within(0, 1, "as the mark of blocks") == 1) {
    if (header.num_values() == 0) bad_header("blocks of a tensor without values");
    header.code = read_code(in);
    read_index(in, header);
  } else {
    if (in.left() != 0)
      fail(PayloadErrorCode::kTrailingBytes,
           std::to_string(in.left()) + " bytes more than the header announces");
    if (header.base != header.result) bad_header("two hashes of a tensor that did not change");
  }
  header_bytes = in.used();
  return header;
}

}  // namespace slimgrad
