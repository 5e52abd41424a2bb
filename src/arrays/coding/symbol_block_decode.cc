#include <algorithm>
#include <array>

#include "arrays/coding/symbol_block.h"
#include "arrays/coding/symbol_block_layout.h"
#include "formats/bit_packing.h"
#include "kernels/coding/escapes.h"
#include "kernels/coding/huffman.h"
#include "kernels/coding/rans.h"
#include "kernels/coding/zero_mask.h"

namespace slimgrad {

struct BlockDecoder::State {
  struct Level {
    std::vector<std::uint8_t> masks, others;
  };
  using Bytes = std::span<const std::uint8_t>;
  using Symbols = std::span<std::uint8_t>;

  const SharedTable* shared;
  kernels::RansDecodeTable rans, shared_rans;
  kernels::HuffmanDecodeTable huffman, shared_huffman;
  std::array<Level, kMaxSparseDepth> levels;

  DecodeStatus decode(Bytes bytes, Symbols symbols, int depth);
  DecodeStatus decode_plain(Bytes bytes, Symbols symbols, bool constant);
  DecodeStatus decode_packed(Bytes bytes, Symbols symbols);
  DecodeStatus decode_rans(Bytes bytes, Symbols symbols, const kernels::RansDecodeTable& table,
                           int escape, bool paired);
  DecodeStatus decode_placed(Bytes bytes, Symbols symbols, bool paired);
  DecodeStatus decode_streams(Bytes bytes, Symbols symbols, const kernels::RansDecodeTable& table,
                              bool paired);
  DecodeStatus decode_sparse(Bytes bytes, Symbols symbols, int depth);
};

DecodeStatus BlockDecoder::State::decode_rans(Bytes bytes, Symbols symbols,
                                              const kernels::RansDecodeTable& table, int escape,
                                              bool paired) {
  if (escape < 0) return decode_streams(bytes, symbols, table, paired);
  if (bytes.size() < 4) return DecodeStatus::kTruncated;
  const std::size_t num_escapes = load_u32(bytes.data());
  if (num_escapes > bytes.size() - 4) return DecodeStatus::kTruncated;
  const Bytes escapes = bytes.subspan(4, num_escapes);
  const DecodeStatus status =
      decode_streams(bytes.subspan(4 + num_escapes), symbols, table, paired);
  if (status != DecodeStatus::kOk) return status;
  const bool fit = kernels::put_escapes(symbols, static_cast<std::uint8_t>(escape), escapes);
  return fit ? DecodeStatus::kOk : DecodeStatus::kBadFinalState;
}

DecodeStatus BlockDecoder::State::decode_placed(Bytes bytes, Symbols symbols, bool paired) {
  if (bytes.size() < 4) return DecodeStatus::kTruncated;
  const std::size_t num_placed = load_u32(bytes.data());
  bytes = bytes.subspan(4);
  if (num_placed > bytes.size() / (1 + kernels::kGapBytes)) return DecodeStatus::kTruncated;
  const Bytes values = bytes.first(num_placed);
  const Bytes gaps = bytes.subspan(num_placed, kernels::kGapBytes * num_placed);
  const DecodeStatus status =
      decode_streams(bytes.subspan(values.size() + gaps.size()), symbols, rans, paired);
  if (status != DecodeStatus::kOk) return status;
  return kernels::put_placed(symbols, values, gaps) ? DecodeStatus::kOk
                                                    : DecodeStatus::kBadFinalState;
}

DecodeStatus BlockDecoder::State::decode_streams(Bytes bytes, Symbols symbols,
                                                 const kernels::RansDecodeTable& table,
                                                 bool paired) {
  if (!paired) return kernels::rans_decode(bytes, table, symbols);
  if (bytes.size() < 4) return DecodeStatus::kTruncated;
  const std::size_t size = load_u32(bytes.data());
  if (size > bytes.size() - 4) return DecodeStatus::kTruncated;
  const std::size_t first = symbols.size() / (2 * kernels::kRansStates) * kernels::kRansStates;
  return kernels::rans_decode_pair(bytes.subspan(4, size), symbols.first(first),
                                   bytes.subspan(4 + size), symbols.subspan(first), table);
}

DecodeStatus BlockDecoder::State::decode_sparse(Bytes bytes, Symbols symbols, int depth) {
  if (depth == kMaxSparseDepth) return DecodeStatus::kBadMethod;
  if (bytes.size() < 5) return DecodeStatus::kTruncated;
  const std::uint8_t zero = bytes[0];
  const std::size_t size = load_u32(bytes.data() + 1);
  if (size > bytes.size() - 5) return DecodeStatus::kTruncated;
  Level& level = levels[depth];
  level.masks.resize(kernels::num_masks(symbols.size()));
  DecodeStatus status = decode(bytes.subspan(5, size), level.masks, depth + 1);
  if (status != DecodeStatus::kOk) return status;
  const std::size_t num_others = kernels::count_others(level.masks, symbols.size());
  if (num_others > symbols.size()) return DecodeStatus::kBadFinalState;
  level.others.resize(num_others + kernels::kZeroMaskSlack);
  status = decode(bytes.subspan(5 + size), std::span(level.others).first(num_others), depth + 1);
  if (status != DecodeStatus::kOk) return status;
  kernels::merge_zeros(level.masks, level.others, zero, symbols);
  return DecodeStatus::kOk;
}

DecodeStatus BlockDecoder::State::decode_plain(Bytes bytes, Symbols symbols, bool constant) {
  const std::size_t size = constant ? 1 : symbols.size();
  if (bytes.size() < size) return DecodeStatus::kTruncated;
  if (bytes.size() > size) return DecodeStatus::kTrailingBytes;
  if (constant)
    std::fill(symbols.begin(), symbols.end(), bytes[0]);
  else
    std::copy(bytes.begin(), bytes.end(), symbols.begin());
  return DecodeStatus::kOk;
}

DecodeStatus BlockDecoder::State::decode_packed(Bytes bytes, Symbols symbols) {
  if (bytes.empty()) return DecodeStatus::kTruncated;
  const int bits = bytes[0];
  if (bits < 2 || bits > 7) return DecodeStatus::kBadTable;
  bytes = bytes.subspan(1);
  const std::size_t size = packed_bytes(symbols.size(), bits);
  if (bytes.size() < size) return DecodeStatus::kTruncated;
  if (bytes.size() > size) return DecodeStatus::kTrailingBytes;
  const std::size_t used = symbols.size() * static_cast<std::size_t>(bits) % 8;
  if (used != 0 && bytes.back() >> used != 0) return DecodeStatus::kBadFinalState;
  with_bits(bits, [&]<int width>() {
    unpack_codes<width>(bytes.data(), symbols.size(), symbols.data());
  });
  return DecodeStatus::kOk;
}

DecodeStatus BlockDecoder::State::decode(Bytes bytes, Symbols symbols, int depth) {
  if (bytes.empty()) return DecodeStatus::kTruncated;
  const bool use_shared = (bytes[0] & kSharedFlag) != 0, paired = (bytes[0] & kPairedFlag) != 0;
  const bool placed = (bytes[0] & kPlacedFlag) != 0;
  const auto method =
      static_cast<BlockMethod>(bytes[0] & ~(kSharedFlag | kPairedFlag | kPlacedFlag));
  bytes = bytes.subspan(1);
  const bool may_share = method == BlockMethod::kRans || method == BlockMethod::kHuffman;
  if ((use_shared && !may_share) || ((paired || placed) && method != BlockMethod::kRans) ||
      (use_shared && placed))
    return DecodeStatus::kBadMethod;
  if (use_shared && shared == nullptr) return DecodeStatus::kNoSharedTable;
  BitReader reader(bytes);
  switch (method) {
    case BlockMethod::kRaw:
    case BlockMethod::kConstant:
      return decode_plain(bytes, symbols, method == BlockMethod::kConstant);
    case BlockMethod::kRans: {
      if (use_shared)
        return decode_rans(bytes, symbols, shared_rans, shared->frequencies.escape, paired);
      RansFrequencies frequencies;
      if (!read_frequencies(reader, frequencies)) return DecodeStatus::kBadTable;
      if (placed && frequencies.has_escape()) return DecodeStatus::kBadTable;
      kernels::build_decode_table(frequencies, rans);
      bytes = bytes.subspan(reader.num_bytes());
      return placed ? decode_placed(bytes, symbols, paired)
                    : decode_rans(bytes, symbols, rans, frequencies.escape, paired);
    }
    case BlockMethod::kHuffman: {
      if (use_shared) return kernels::huffman_decode(bytes, shared_huffman, symbols);
      HuffmanLengths lengths;
      if (!read_lengths(reader, lengths)) return DecodeStatus::kBadTable;
      kernels::build_decode_table(lengths, huffman);
      return kernels::huffman_decode(bytes.subspan(reader.num_bytes()), huffman, symbols);
    }
    case BlockMethod::kPacked:
      return decode_packed(bytes, symbols);
    case BlockMethod::kSparse:
      return decode_sparse(bytes, symbols, depth);
  }
  return DecodeStatus::kBadMethod;
}

BlockDecoder::BlockDecoder(const SharedTable* shared) : state_(std::make_unique<State>()) {
  state_->shared = shared;
  if (shared == nullptr) return;
  kernels::build_decode_table(shared->frequencies, state_->shared_rans);
  kernels::build_decode_table(shared->lengths, state_->shared_huffman);
}

BlockDecoder::~BlockDecoder() = default;

DecodeStatus BlockDecoder::decode(std::span<const std::uint8_t> bytes,
                                  std::span<std::uint8_t> symbols) {
  return state_->decode(bytes, symbols, 0);
}

}  // namespace slimgrad
