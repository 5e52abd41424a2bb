#include <algorithm>
#include <array>

#include "arrays/coding/symbol_block.h"
#include "arrays/coding/symbol_block_layout.h"
#include "base/check.h"
#include "base/scratch.h"
#include "formats/bit_packing.h"
#include "kernels/coding/escapes.h"
#include "kernels/coding/huffman.h"
#include "kernels/coding/rans.h"
#include "kernels/coding/value_symbols.h"
#include "kernels/coding/zero_mask.h"

namespace slimgrad {

SharedTable make_shared_table(const Weights& weights) {
  std::uint64_t sum = 0;
  int used = 0;
  for (const std::uint64_t weight : weights) {
    check(weight < std::uint64_t{1} << 52, "make_shared_table", "weights below 2^52", weight);
    sum += weight;
    used += weight > 0 ? 1 : 0;
  }
  check(used >= 2, "make_shared_table", "at least two symbols with a weight", used);
  check(sum < std::uint64_t{1} << 52, "make_shared_table", "a sum below 2^52", sum);
  return {*choose_frequencies(weights), huffman_lengths(weights)};
}

namespace {

// How a block is coded with rANS.
struct RansChoice {
  RansFrequencies frequencies;
  std::size_t num_rare;  // symbols that travel beside the streams
  bool placed;           // with their places
  bool paired;           // two streams
};

}  // namespace

struct BlockEncoder::State {
  // Buffers of one depth of sparse nesting. The block is built at the end of `scratch`, backwards.
  struct Level {
    Scratch<std::uint8_t> masks, others, scratch;
  };

  EntropyCoder coder;
  const SharedTable* shared;
  int bits;
  kernels::RansEncodeTable rans, shared_rans;
  kernels::HuffmanEncodeTable huffman, shared_huffman;
  std::array<Level, kMaxSparseDepth + 1> levels;
  std::vector<std::uint8_t> sample;
  SampleSize sample_size = SampleSize::kSmall;
  Scratch<std::uint8_t> rare_values, rare_gaps;

  std::span<const std::uint8_t> encode(std::span<const std::uint8_t> symbols, int depth);
  kernels::ByteCounts count(std::span<const std::uint8_t> symbols, CountedFrom& from);
  std::span<const std::uint8_t> encode_raw(std::span<const std::uint8_t> symbols, Level& level);
  std::span<const std::uint8_t> encode_constant(std::uint8_t symbol, Level& level);
  std::span<const std::uint8_t> encode_packed(std::span<const std::uint8_t> symbols, Level& level);
  RansChoice choose_rans(std::span<const std::uint8_t> symbols, const kernels::ByteCounts& counts,
                         CountedFrom from, bool use_shared);
  std::span<const std::uint8_t> encode_rans(std::span<const std::uint8_t> symbols,
                                            const RansChoice& plan, bool use_shared, Level& level);
  std::span<const std::uint8_t> encode_huffman(std::span<const std::uint8_t> symbols,
                                               const kernels::ByteCounts& counts, bool use_shared,
                                               Level& level);
  std::span<const std::uint8_t> encode_sparse(std::span<const std::uint8_t> symbols,
                                              std::uint8_t zero, int depth);
};

namespace {

std::span<std::uint8_t> at_least(Scratch<std::uint8_t>& buffer, std::size_t size) {
  return {buffer.reserve(size), size};
}

// Whether to take a symbol out as a mask. Below 60 % that saves no time, as n / 8 masks and the
// others are too many, and costs the states of a second stream.
constexpr bool pays_as_mask(std::size_t count, std::size_t num_symbols) {
  return 5 * count > 3 * num_symbols;
}

// The commonest symbol if a sample says that it is sparse, and otherwise nothing. The
// sample decides only how the block is coded, so it need not be right; it saves counting all the
// symbols, which is slowest where they are all alike.
std::optional<std::uint8_t> dominant_symbol(std::span<const std::uint8_t> symbols) {
  constexpr std::size_t kFew = 1024;
  if (symbols.size() < 4 * kFew) return std::nullopt;
  const std::size_t stride = (symbols.size() / kFew - 1) | 1;
  std::array<std::uint8_t, kFew> few;
  for (std::size_t i = 0; i < kFew; ++i) few[i] = symbols[i * stride];
  const kernels::ByteCounts counts = kernels::count_bytes(few);
  const auto commonest = std::max_element(counts.begin(), counts.end());
  if (!pays_as_mask(*commonest, kFew)) return std::nullopt;
  return static_cast<std::uint8_t>(commonest - counts.begin());
}

// Whether a sample can tell that the shared table has a code for every symbol: if it has one for
// each possible symbol, or an escape.
bool knows_all(const SharedTable& shared) {
  const auto& frequency = shared.frequencies.frequency;
  return shared.frequencies.has_escape() || std::ranges::count(frequency, 0) == 0;
}

// Whether the shared table gives every symbol that occurs a code.
bool covers(const SharedTable& shared, EntropyCoder coder, const kernels::ByteCounts& counts) {
  const bool rans = coder == EntropyCoder::kRans;
  if (rans && shared.frequencies.has_escape()) return true;
  for (int s = 0; s < 256; ++s)
    if (counts[s] > 0 && (rans ? shared.frequencies.frequency[s] : shared.lengths[s]) == 0)
      return false;
  return true;
}

// The symbols whose values travel beside the stream.
kernels::ByteSet rare_symbols(const RansFrequencies& frequencies) {
  kernels::ByteSet rare;
  for (int s = 0; s < 256; ++s)
    if (frequencies.frequency[s] == 0 || frequencies.escapes(s))
      rare.insert(static_cast<std::uint8_t>(s));
  return rare;
}

// Whether a symbol without a frequency may occur.
bool may_have_rare(const RansFrequencies& frequencies, const kernels::ByteCounts& counts,
                   CountedFrom from) {
  for (int s = 0; s < 256; ++s)
    if (frequencies.frequency[s] == 0 && (counts[s] > 0 || from == CountedFrom::kSample))
      return true;
  return false;
}

// Counting takes a third as long as coding, and 64 Ki symbols tell the frequencies well enough:
// with m of them, and k in use, the code is about k / (2 m ln 2) bits a symbol longer, 0.001 here.
constexpr std::size_t kSampleRun = 256;
std::size_t num_runs(SampleSize size) { return size == SampleSize::kLarge ? 512 : 256; }

}  // namespace

std::span<const std::uint8_t> BlockEncoder::State::encode_raw(std::span<const std::uint8_t> symbols,
                                                              Level& level) {
  const std::span<std::uint8_t> out = at_least(level.scratch, symbols.size() + 1);
  out[0] = static_cast<std::uint8_t>(BlockMethod::kRaw);
  std::copy(symbols.begin(), symbols.end(), out.begin() + 1);
  return out.first(symbols.size() + 1);
}

std::span<const std::uint8_t> BlockEncoder::State::encode_constant(std::uint8_t symbol,
                                                                   Level& level) {
  const std::span<std::uint8_t> out = at_least(level.scratch, 2);
  out[0] = static_cast<std::uint8_t>(BlockMethod::kConstant);
  out[1] = symbol;
  return out.first(2);
}

// The counts of all symbols, or of a sample if the coder can do with one: rANS has escapes, or
// places, for what the sample did not see.
kernels::ByteCounts BlockEncoder::State::count(std::span<const std::uint8_t> symbols,
                                               CountedFrom& from) {
  const std::size_t runs = num_runs(sample_size);
  if (from == CountedFrom::kAll || symbols.size() < 2 * runs * kSampleRun) {
    from = CountedFrom::kAll;
    return kernels::count_bytes(symbols);
  }
  sample.resize(runs * kSampleRun);
  const std::size_t stride = symbols.size() / runs;
  for (std::size_t run = 0; run < runs; ++run)
    std::copy_n(symbols.begin() + run * stride, kSampleRun, sample.begin() + run * kSampleRun);
  return kernels::count_bytes(sample);
}

// Also takes the rare symbols out, into rare_values and rare_gaps.
RansChoice BlockEncoder::State::choose_rans(std::span<const std::uint8_t> symbols,
                                            const kernels::ByteCounts& counts, CountedFrom from,
                                            bool use_shared) {
  const Weights weights = to_weights(counts);
  const double counted = from == CountedFrom::kSample ? sample.size() : symbols.size();
  const auto coded_bytes = [&](const RansFrequencies& f) {
    return coded_bits(weights, f) / 8 * (symbols.size() / counted);
  };
  auto common = use_shared ? std::nullopt : choose_common_frequencies(weights);
  if (common && coded_bytes(*common) < kPlacedBytes) common.reset();
  const RansFrequencies frequencies = use_shared ? shared->frequencies
                                      : common   ? *common
                                                 : *choose_frequencies(weights, from);
  const double bytes = coded_bytes(frequencies);
  std::size_t num_rare = 0, most_rare = symbols.size() / 64;
  if (common && may_have_rare(frequencies, counts, from)) {
    num_rare = kernels::copy_placed(
        symbols, rare_symbols(frequencies),
        at_least(rare_values, kernels::most_placed(symbols.size())).data(),
        at_least(rare_gaps, kernels::kGapBytes * kernels::most_placed(symbols.size())).data());
    most_rare =
        static_cast<std::size_t>(bytes / 128) / (1 + kernels::kGapBytes);  // places cost more
  } else if (frequencies.has_escape()) {
    num_rare = kernels::copy_escapes(symbols, rare_symbols(frequencies),
                                     at_least(rare_values, symbols.size()).data());
  }
  // A sample so wrong is of symbols that change from place to place.
  if (from == CountedFrom::kSample && num_rare > most_rare)
    return choose_rans(symbols, kernels::count_bytes(symbols), CountedFrom::kAll, use_shared);
  return {frequencies, num_rare, common && num_rare > 0, bytes >= kPairedBytes};
}

std::span<const std::uint8_t> BlockEncoder::State::encode_rans(
    std::span<const std::uint8_t> symbols, const RansChoice& plan, bool use_shared, Level& level) {
  std::array<std::uint8_t, kMaxBlockHeader> header;
  std::size_t header_size = 1;
  header[0] = static_cast<std::uint8_t>(
      static_cast<int>(BlockMethod::kRans) + (use_shared ? kSharedFlag : 0) +
      (plan.paired ? kPairedFlag : 0) + (plan.placed ? kPlacedFlag : 0));
  if (!use_shared) {
    BitWriter writer{std::span(header).subspan(1)};
    write_frequencies(plan.frequencies, writer);
    header_size += writer.num_bytes();
    kernels::build_encode_table(plan.frequencies, rans);
  }
  const kernels::RansEncodeTable& table = use_shared ? shared_rans : rans;
  const std::span<std::uint8_t> scratch = at_least(
      level.scratch, kernels::rans_encode_bound(symbols.size()) + kernels::rans_encode_bound(0) +
                         kMaxBlockHeader + (1 + kernels::kGapBytes) * plan.num_rare);
  // Everything is written backwards, as rANS writes.
  std::uint8_t* begin = scratch.data() + scratch.size();
  const std::uint8_t* const end = begin;
  const auto prepend = [&](const std::uint8_t* bytes, std::size_t size) {
    std::copy_n(bytes, size, begin -= size);
  };
  const auto prepend_size = [&](std::size_t size) { store_u32(begin -= 4, size); };
  const auto prepend_stream = [&](std::span<const std::uint8_t> part) {
    const auto room = scratch.first(static_cast<std::size_t>(begin - scratch.data()));
    begin = const_cast<std::uint8_t*>(kernels::rans_encode(part, table, room).data());
  };
  if (plan.paired) {
    const std::size_t first = symbols.size() / (2 * kernels::kRansStates) * kernels::kRansStates;
    prepend_stream(symbols.subspan(first));
    const std::uint8_t* const second = begin;
    prepend_stream(symbols.first(first));
    prepend_size(static_cast<std::size_t>(second - begin));
  } else {
    prepend_stream(symbols);
  }
  if (plan.placed) prepend(rare_gaps.data(), kernels::kGapBytes * plan.num_rare);
  if (plan.placed || plan.frequencies.has_escape()) {
    prepend(rare_values.data(), plan.num_rare);
    prepend_size(plan.num_rare);
  }
  prepend(header.data(), header_size);
  return {begin, end};
}

std::span<const std::uint8_t> BlockEncoder::State::encode_huffman(
    std::span<const std::uint8_t> symbols, const kernels::ByteCounts& counts, bool use_shared,
    Level& level) {
  const std::span<std::uint8_t> out =
      at_least(level.scratch, kMaxBlockHeader + kernels::huffman_encode_bound(symbols.size()));
  out[0] = static_cast<std::uint8_t>(static_cast<int>(BlockMethod::kHuffman) +
                                     (use_shared ? kSharedFlag : 0));
  std::size_t header_size = 1;
  if (!use_shared) {
    const HuffmanLengths lengths = huffman_lengths(to_weights(counts));
    BitWriter writer(out.subspan(1, kMaxBlockHeader - 1));
    write_lengths(lengths, writer);
    header_size += writer.num_bytes();
    kernels::build_encode_table(lengths, huffman);
  }
  const kernels::HuffmanEncodeTable& table = use_shared ? shared_huffman : huffman;
  return out.first(header_size + kernels::huffman_encode(symbols, table, out.subspan(header_size)));
}

std::span<const std::uint8_t> BlockEncoder::State::encode_packed(
    std::span<const std::uint8_t> symbols, Level& level) {
  const std::size_t size = packed_bytes(symbols.size(), bits);
  if (2 + size > symbols.size() + 1) return encode_raw(symbols, level);
  const std::span<std::uint8_t> out = at_least(level.scratch, 2 + size);
  out[0] = static_cast<std::uint8_t>(BlockMethod::kPacked);
  out[1] = static_cast<std::uint8_t>(bits);
  with_bits(bits, [&]<int width>() {
    pack_codes<width>(symbols.data(), symbols.size(), out.data() + 2);
  });
  return out;
}

std::span<const std::uint8_t> BlockEncoder::State::encode_sparse(
    std::span<const std::uint8_t> symbols, std::uint8_t zero, int depth) {
  Level& level = levels[depth];
  const auto masks = at_least(level.masks, kernels::num_masks(symbols.size()));
  const auto others = at_least(level.others, symbols.size() + kernels::kZeroMaskSlack);
  const std::size_t num_others = kernels::split_zeros(symbols, zero, masks, others);
  if (num_others == 0) return encode_constant(zero, level);
  const std::span<std::uint8_t> out =
      at_least(level.scratch, 6 + (kernels::num_masks(symbols.size()) + 1) + (num_others + 1));
  out[0] = static_cast<std::uint8_t>(BlockMethod::kSparse);
  out[1] = zero;
  std::size_t size = 6;
  const auto append = [&](std::span<const std::uint8_t> block) {
    std::copy(block.begin(), block.end(), out.begin() + size);
    size += block.size();
    return block.size();
  };
  store_u32(out.data() + 2,
            append(encode(masks.first(kernels::num_masks(symbols.size())), depth + 1)));
  append(encode(others.first(num_others), depth + 1));
  return out.first(size);
}

std::span<const std::uint8_t> BlockEncoder::State::encode(std::span<const std::uint8_t> symbols,
                                                          int depth) {
  Level& level = levels[depth];
  if (symbols.empty()) return encode_raw(symbols, level);
  if (coder == EntropyCoder::kNone) return encode_packed(symbols, level);
  const bool may_share = depth == 0 && shared != nullptr;
  const bool may_be_sparse = !may_share && depth < kMaxSparseDepth;
  std::span<const std::uint8_t> block;
  if (const auto zero = may_be_sparse ? dominant_symbol(symbols) : std::nullopt) {
    block = encode_sparse(symbols, *zero, depth);
  } else {
    const bool may_sample = coder == EntropyCoder::kRans && (!may_share || knows_all(*shared));
    CountedFrom from = may_sample ? CountedFrom::kSample : CountedFrom::kAll;
    const kernels::ByteCounts counts = count(symbols, from);
    const std::size_t num_counted = from == CountedFrom::kSample ? sample.size() : symbols.size();
    const auto commonest = std::max_element(counts.begin(), counts.end());
    const auto symbol = static_cast<std::uint8_t>(commonest - counts.begin());
    const bool use_shared = may_share && covers(*shared, coder, counts);
    if (*commonest == symbols.size())
      block = encode_constant(symbol, level);
    else if (may_be_sparse && pays_as_mask(*commonest, num_counted))
      block = encode_sparse(symbols, symbol, depth);
    else if (coder == EntropyCoder::kRans)
      block =
          encode_rans(symbols, choose_rans(symbols, counts, from, use_shared), use_shared, level);
    else
      block = encode_huffman(symbols, counts, use_shared, level);
  }
  return block.size() <= symbols.size() + 1 ? block : encode_raw(symbols, level);
}

BlockEncoder::BlockEncoder(EntropyCoder coder, const SharedTable* shared, int bits)
    : state_(std::make_unique<State>()) {
  state_->coder = coder;
  state_->bits = bits;
  state_->shared = shared;
  if (shared == nullptr) return;
  kernels::build_encode_table(shared->frequencies, state_->shared_rans);
  kernels::build_encode_table(shared->lengths, state_->shared_huffman);
}

BlockEncoder::~BlockEncoder() = default;

std::span<const std::uint8_t> BlockEncoder::encode(std::span<const std::uint8_t> symbols,
                                                   SampleSize sample_size) {
  check(symbols.size() <= kMaxBlockSymbols, "BlockEncoder", "at most 2^24 symbols", symbols.size());
  state_->sample_size = sample_size;
  return state_->encode(symbols, 0);
}

}  // namespace slimgrad
