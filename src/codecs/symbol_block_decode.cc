#include <algorithm>
#include <array>

#include "codecs/symbol_block.h"
#include "codecs/symbol_block_layout.h"
#include "kernels/zero_mask.h"

namespace slimgrad {

struct BlockDecoder::State {
  struct Level {
    std::vector<std::uint8_t> masks, others;
  };
  using Bytes = std::span<const std::uint8_t>;
  using Symbols = std::span<std::uint8_t>;

  const SharedTable* shared;
  RansDecodeTable rans, shared_rans;
  HuffmanDecodeTable huffman, shared_huffman;
  std::array<Level, kMaxSparseDepth> levels;

  DecodeStatus decode(Bytes bytes, Symbols symbols, int depth);
  DecodeStatus decode_rans(Bytes bytes, Symbols symbols, const RansDecodeTable& table);
  DecodeStatus decode_sparse(Bytes bytes, Symbols symbols, int depth);
};

DecodeStatus BlockDecoder::State::decode_rans(Bytes bytes, Symbols symbols,
                                              const RansDecodeTable& table) {
  if (symbols.size() < kPairedSymbols) return rans_decode(bytes, table, symbols);
  if (bytes.size() < 4) return DecodeStatus::kTruncated;
  const std::size_t size = load_u32(bytes.data());
  if (size > bytes.size() - 4) return DecodeStatus::kTruncated;
  const std::size_t first = symbols.size() / (2 * kRansStates) * kRansStates;
  return rans_decode_pair(bytes.subspan(4, size), symbols.first(first), bytes.subspan(4 + size),
                          symbols.subspan(first), table);
}

DecodeStatus BlockDecoder::State::decode_sparse(Bytes bytes, Symbols symbols, int depth) {
  if (depth == kMaxSparseDepth) return DecodeStatus::kBadMethod;
  if (bytes.size() < 5) return DecodeStatus::kTruncated;
  const std::uint8_t zero = bytes[0];
  const std::size_t size = load_u32(bytes.data() + 1);
  if (size > bytes.size() - 5) return DecodeStatus::kTruncated;
  Level& level = levels[depth];
  level.masks.resize(num_masks(symbols.size()));
  DecodeStatus status = decode(bytes.subspan(5, size), level.masks, depth + 1);
  if (status != DecodeStatus::kOk) return status;
  const std::size_t num_others = count_others(level.masks, symbols.size());
  if (num_others > symbols.size()) return DecodeStatus::kBadFinalState;
  level.others.resize(num_others + kZeroMaskSlack);
  status = decode(bytes.subspan(5 + size), std::span(level.others).first(num_others), depth + 1);
  if (status != DecodeStatus::kOk) return status;
  merge_zeros(level.masks, level.others, zero, symbols);
  return DecodeStatus::kOk;
}

DecodeStatus BlockDecoder::State::decode(Bytes bytes, Symbols symbols, int depth) {
  if (bytes.empty()) return DecodeStatus::kTruncated;
  const auto method = static_cast<BlockMethod>(bytes[0]);
  bytes = bytes.subspan(1);
  BitReader reader(bytes);
  switch (method) {
    case BlockMethod::kRaw:
    case BlockMethod::kConstant: {
      const std::size_t size = method == BlockMethod::kRaw ? symbols.size() : 1;
      if (bytes.size() < size) return DecodeStatus::kTruncated;
      if (bytes.size() > size) return DecodeStatus::kTrailingBytes;
      if (method == BlockMethod::kRaw)
        std::copy(bytes.begin(), bytes.end(), symbols.begin());
      else
        std::fill(symbols.begin(), symbols.end(), bytes[0]);
      return DecodeStatus::kOk;
    }
    case BlockMethod::kRans: {
      RansFrequencies frequencies;
      if (!read_frequencies(reader, frequencies)) return DecodeStatus::kBadTable;
      build_decode_table(frequencies, rans);
      return decode_rans(bytes.subspan(reader.num_bytes()), symbols, rans);
    }
    case BlockMethod::kHuffman: {
      HuffmanLengths lengths;
      if (!read_lengths(reader, lengths)) return DecodeStatus::kBadTable;
      build_decode_table(lengths, huffman);
      return huffman_decode(bytes.subspan(reader.num_bytes()), huffman, symbols);
    }
    case BlockMethod::kRansShared:
      if (shared == nullptr) return DecodeStatus::kNoSharedTable;
      return decode_rans(bytes, symbols, shared_rans);
    case BlockMethod::kHuffmanShared:
      if (shared == nullptr) return DecodeStatus::kNoSharedTable;
      return huffman_decode(bytes, shared_huffman, symbols);
    case BlockMethod::kSparse:
      return decode_sparse(bytes, symbols, depth);
  }
  return DecodeStatus::kBadMethod;
}

BlockDecoder::BlockDecoder(const SharedTable* shared) : state_(std::make_unique<State>()) {
  state_->shared = shared;
  if (shared == nullptr) return;
  build_decode_table(shared->frequencies, state_->shared_rans);
  build_decode_table(shared->lengths, state_->shared_huffman);
}

BlockDecoder::~BlockDecoder() = default;

DecodeStatus BlockDecoder::decode(std::span<const std::uint8_t> bytes,
                                  std::span<std::uint8_t> symbols) {
  return state_->decode(bytes, symbols, 0);
}

}  // namespace slimgrad
