#include <algorithm>
#include <bit>
#include <cstring>

#include "arrays/coding/delta_block.h"
#include "formats/header_bytes.h"

namespace slimgrad {
namespace {

using namespace delta_format;
using kernels::WideRansEncoder;

template <typename Function>
auto with_word(std::size_t width, Function&& function) {
  switch (width) {
    case 1:
      return function(std::uint8_t{});
    case 2:
      return function(std::uint16_t{});
    case 4:
      return function(std::uint32_t{});
    default:
      return function(std::uint64_t{});
  }
}

template <typename Word>
Word load(std::span<const std::uint8_t> values, std::size_t i) {
  Word word;
  std::memcpy(&word, values.data() + i * sizeof(Word), sizeof(Word));
  return word;
}

// Calls function(i) for every set bit.
template <typename Function>
void for_marks(const std::uint64_t* marks, std::size_t num_values, const Function& function) {
  for (std::size_t m = 0; m < (num_values + 63) / 64; ++m)
    for (std::uint64_t word = marks[m]; word != 0; word &= word - 1)
      function(64 * m + static_cast<std::size_t>(std::countr_zero(word)));
}

void put_varint(std::size_t value, std::vector<std::uint8_t>& out) {
  header_bytes::Writer bytes;
  bytes.varint(value);
  const std::vector<std::uint8_t> written = bytes.take();
  out.insert(out.end(), written.begin(), written.end());
}

// Where the code of a symbol begins.
using Starts = std::array<std::uint16_t, 256>;
Starts starts_of(const RansFrequencies& table) {
  Starts starts;
  std::uint32_t start = 0;
  for (std::size_t s = 0; s < 256; ++s) {
    starts[s] = static_cast<std::uint16_t>(start);
    start += table.frequency[s];
  }
  return starts;
}

// A symbol and what follows it, which is written first.
void put_symbol(WideRansEncoder& coder, std::uint8_t symbol, std::uint64_t extra, int extra_bits,
                const RansFrequencies& table, const Starts& starts, std::uint8_t*& end) {
  if (extra_bits > 0) coder.put_raw(extra, extra_bits, end);
  coder.put(starts[symbol], table.frequency[symbol], kRansBits, end);
}

// Steps of the coder that a difference takes at most: its symbol, and 62 bits as they are.
constexpr std::size_t kStepsASymbol = 1 + 4;

std::vector<Starts> all_starts(const DeltaCode& code) {
  std::vector<Starts> starts;
  for (const RansFrequencies& table : code.tables) starts.push_back(starts_of(table));
  return starts;
}

template <typename Word>
DenseSymbol dense_symbol(std::span<const std::uint8_t> base, std::span<const std::uint8_t> changed,
                         const ValueType& type, const DeltaCode& code, std::size_t i) {
  const Word from = load<Word>(base, i);
  const Symbol symbol = symbol_of(difference(from, load<Word>(changed, i), type.kind));
  return {static_cast<std::uint8_t>(dense_context(exponent_of(from, type), code.top)),
          symbol.symbol, symbol.extra};
}

// The stream of many dense values; `positions` lists them.
template <typename Word>
std::vector<std::uint8_t> code_dense(std::span<const std::uint8_t> base,
                                     std::span<const std::uint8_t> changed, const ValueType& type,
                                     const DeltaCode& code,
                                     std::span<const std::uint32_t> positions,
                                     DeltaScratch& scratch) {
  const std::vector<Starts> starts = all_starts(code);
  const std::size_t size = 4 * kStepsASymbol * positions.size() + 8 * kDenseStates;
  std::uint8_t* const buffer = scratch.stream(size);
  std::uint8_t* end = buffer + size;
  std::array<WideRansEncoder, kDenseStates> coders;
  for (std::size_t k = positions.size(); k-- > 0;) {
    const DenseSymbol dense = dense_symbol<Word>(base, changed, type, code, positions[k]);
    const std::uint8_t table = code.table_of[dense.context];
    put_symbol(coders[k % kDenseStates], dense.symbol, dense.extra, extra_bits_of(dense.symbol),
               code.tables[table], starts[table], end);
  }
  for (std::size_t k = kDenseStates; k-- > 0;) coders[k].store(end);
  return {end, buffer + size};
}

// The hazards before a value point into one bucket of 2^16, or its own reach into the next: the
// larger part stands for it.
template <typename Word>
void list_sparse(std::span<const std::uint8_t> base, std::span<const std::uint8_t> changed,
                 const ValueType& type, const DeltaCode& code, Weights& gaps, DeltaScratch& scratch,
                 std::vector<SparseChange>& out) {
  const std::size_t num_values = base.size() / sizeof(Word);
  const kernels::Hazards hazards = hazards_of(code);
  const std::uint8_t* const classes = scratch.classes();
  std::uint32_t* const sums = scratch.sums();
  kernels::sum_hazards(classes, num_values, hazards, sums);
  std::size_t num_changes = 0;
  for (std::size_t m = 0; m < (num_values + 63) / 64; ++m)
    num_changes += static_cast<std::size_t>(std::popcount(scratch.marks()[m]));
  out.reserve(num_changes);
  std::uint32_t origin = 0;
  for_marks(scratch.marks(), num_values, [&](std::size_t i) {
    if (classes[i] == 0) return;
    const std::uint32_t before = kernels::hazards_before(i, classes, hazards, sums);
    const std::uint32_t hazard = hazards[classes[i]];
    const std::uint32_t low = before - origin, high = low + hazard;
    origin = before + hazard;
    SparseChange change;
    change.gap = static_cast<std::uint16_t>(low >> kGapBits);
    change.start = static_cast<std::uint16_t>(low);
    change.frequency = static_cast<std::uint16_t>(std::min(hazard, kGapUnit - change.start));
    if (const std::uint32_t rest = hazard - change.frequency; rest > change.frequency) {
      change.gap = static_cast<std::uint16_t>(high >> kGapBits);
      change.start = 0;
      change.frequency = static_cast<std::uint16_t>(rest);
    }
    change.context = static_cast<std::uint8_t>(sparse_context(classes[i]));
    const Symbol symbol =
        symbol_of(difference(load<Word>(base, i), load<Word>(changed, i), type.kind));
    change.symbol = symbol.symbol;
    change.extra = symbol.extra;
    gaps[gap_symbol(change.gap).symbol] += 1;
    out.push_back(change);
  });
}

}  // namespace

void count_block(std::span<const std::uint8_t> base, std::span<const std::uint8_t> changed,
                 const ValueType& type, bool sampled, DeltaScratch& scratch) {
  const std::size_t num_values = base.size() / type.width;
  DeltaCounts& counts = scratch.counts();
  kernels::mark_changes(base.data(), changed.data(), num_values, type.width, scratch.marks());
  with_word(type.width, [&](auto zero) {
    using Word = decltype(zero);
    for_marks(scratch.marks(), num_values, [&](std::size_t i) {
      const Word from = load<Word>(base, i);
      const Symbol symbol = symbol_of(difference(from, load<Word>(changed, i), type.kind));
      counts.add_change(exponent_of(from, type), symbol.symbol);
    });
    const std::size_t step = sampled ? 1024 : 64;
    for (std::size_t first = 0; first < num_values; first += step)
      for (std::size_t i = first; i < std::min(first + 64, num_values); ++i) {
        ++counts.values[static_cast<std::size_t>(exponent_of(load<Word>(base, i), type))];
        ++counts.num_sampled;
      }
  });
}

CodedBlock prepare_block(std::span<const std::uint8_t> base, std::span<const std::uint8_t> changed,
                         const ValueType& type, const DeltaCode& code, Weights& gaps,
                         DeltaScratch& scratch) {
  const std::size_t num_values = base.size() / type.width;
  std::uint64_t* const marks = scratch.marks();
  CodedBlock block;
  kernels::mark_changes(base.data(), changed.data(), num_values, type.width, marks);
  block.is_changed =
      std::any_of(marks, marks + (num_values + 63) / 64, [](std::uint64_t m) { return m != 0; });
  if (!block.is_changed) return block;
  kernels::value_classes(base.data(), num_values, type, code.split, scratch.classes());
  with_word(type.width, [&](auto zero) {
    using Word = decltype(zero);
    if (!code.all_dense())
      list_sparse<Word>(base, changed, type, code, gaps, scratch, block.sparse);
    kernels::mark_dense(scratch.classes(), num_values, marks);
    std::uint32_t* const positions = scratch.positions(num_values);
    std::uint32_t* next = positions;
    for_marks(marks, num_values, [&](std::size_t i) { *next++ = static_cast<std::uint32_t>(i); });
    const std::span<const std::uint32_t> dense(positions, next);
    if (dense.size() >= kManyDense)
      block.dense_stream = code_dense<Word>(base, changed, type, code, dense, scratch);
    else
      for (const std::uint32_t i : dense)
        block.dense.push_back(dense_symbol<Word>(base, changed, type, code, i));
  });
  return block;
}

std::vector<std::uint8_t> finish_block(const CodedBlock& block, const DeltaCode& code,
                                       DeltaScratch& scratch) {
  if (!block.is_changed) return {};
  std::vector<std::uint8_t> bytes;
  if (!block.dense_stream.empty()) {
    put_varint(block.dense_stream.size(), bytes);
    bytes.insert(bytes.end(), block.dense_stream.begin(), block.dense_stream.end());
  }
  put_varint(block.sparse.size(), bytes);
  if (block.sparse.empty() && block.dense.empty()) return bytes;
  // What the decoder reads last comes first.
  const std::vector<Starts> starts = all_starts(code);
  const Starts gap_starts = starts_of(code.gaps);
  const std::size_t size =
      4 * ((kStepsASymbol + 1 + 2) * block.sparse.size() + kStepsASymbol * block.dense.size()) + 8;
  std::uint8_t* const buffer = scratch.stream(size);
  std::uint8_t* end = buffer + size;
  WideRansEncoder coder;
  const auto put_in_context = [&](const auto& change) {
    const std::uint8_t table = code.table_of[change.context];
    put_symbol(coder, change.symbol, change.extra, extra_bits_of(change.symbol), code.tables[table],
               starts[table], end);
  };
  for (std::size_t k = block.sparse.size(); k-- > 0;) put_in_context(block.sparse[k]);
  for (std::size_t k = block.sparse.size(); k-- > 0;)
    coder.put(block.sparse[k].start, block.sparse[k].frequency, kGapBits, end);
  for (std::size_t k = block.sparse.size(); k-- > 0;) {
    const Symbol gap = gap_symbol(block.sparse[k].gap);
    put_symbol(coder, gap.symbol, gap.extra, gap.extra_bits, code.gaps, gap_starts, end);
  }
  for (std::size_t k = block.dense.size(); k-- > 0;) put_in_context(block.dense[k]);
  coder.store(end);
  bytes.insert(bytes.end(), end, buffer + size);
  return bytes;
}

}  // namespace slimgrad
