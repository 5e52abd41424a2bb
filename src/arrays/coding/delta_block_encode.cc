#include <algorithm>
#include <bit>
#include <cstring>

#include "arrays/coding/delta_block.h"
#include "formats/header_bytes.h"

namespace slimgrad {
namespace {

using namespace delta_format;
using kernels::WideFrequency;
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

template <typename Word>
Symbol symbol_at(std::span<const std::uint8_t> base, std::span<const std::uint8_t> changed,
                 ValueKind kind, std::size_t i) {
  return symbol_of(difference(load<Word>(base, i), load<Word>(changed, i), kind));
}

template <typename Word>
KeptSymbol dense_symbol(std::span<const std::uint8_t> base, std::span<const std::uint8_t> changed,
                        const ValueType& type, const DeltaCode& code, std::size_t i,
                        std::uint64_t& extra) {
  const Symbol symbol = symbol_at<Word>(base, changed, type.kind, i);
  extra = symbol.extra;
  const int context = dense_context(exponent_of(load<Word>(base, i), type), code.top);
  return {static_cast<std::uint8_t>(context), symbol.symbol};
}

// The hazards before a value point into one bucket of 2^16, or its own reach into the next: the
// larger part stands for it.
template <typename Word>
void list_sparse(std::span<const std::uint8_t> base, std::span<const std::uint8_t> changed,
                 const ValueType& type, const DeltaCode& code, const std::uint64_t* marks,
                 SymbolCounts& counts, DeltaScratch& scratch, CodedLane& lane) {
  const std::size_t num_values = base.size() / sizeof(Word);
  const kernels::Hazards hazards = hazards_of(code);
  const std::uint8_t* const classes = scratch.classes(0);
  std::uint32_t* const sums = scratch.sums(0);
  kernels::sum_hazards(classes, num_values, hazards, sums);
  KeptSymbol *const first = scratch.kept(), *next = first;
  std::uint32_t origin = 0;
  for_marks(marks, num_values, [&](std::size_t i) {
    const std::uint32_t before = kernels::hazards_before(i, classes, hazards, sums);
    const std::uint32_t hazard = hazards[classes[i]];
    const std::uint32_t low = before - origin, high = low + hazard;
    origin = before + hazard;
    KeptSymbol change;
    change.gap = static_cast<std::uint16_t>(low >> kGapBits);
    change.start = static_cast<std::uint16_t>(low);
    change.frequency = static_cast<std::uint16_t>(std::min(hazard, kGapUnit - change.start));
    if (const std::uint32_t rest = hazard - change.frequency; rest > change.frequency) {
      change.gap = static_cast<std::uint16_t>(high >> kGapBits);
      change.start = 0;
      change.frequency = static_cast<std::uint16_t>(rest);
    }
    const Symbol symbol = symbol_at<Word>(base, changed, type.kind, i);
    change.context = static_cast<std::uint8_t>(sparse_context(classes[i]));
    change.symbol = symbol.symbol;
    if (symbol.extra_bits > 0) lane.sparse_extra.push_back(symbol.extra);
    ++counts.by_context[change.context][change.symbol];
    ++counts.gaps[gap_symbol(change.gap).symbol];
    *next++ = change;
  });
  lane.sparse.assign(first, next);
}

// Writes backwards, as the coder does.
class LaneWriter {
 public:
  LaneWriter(const DeltaEncodeTables& tables, std::uint8_t* end) : tables_(tables), end_(end) {}

  void put(const WideFrequency& frequency, std::uint32_t start, int bits) {
    coder_.put(start, frequency, bits, end_);
  }
  void put(const kernels::WideSymbol& symbol, std::uint64_t extra, int extra_bits) {
    if (extra_bits > 0) coder_.put_raw(extra, extra_bits, end_);
    coder_.put(symbol.start, symbol.frequency, kRansBits, end_);
  }
  void put_difference(const KeptSymbol& kept, std::uint64_t extra) {
    put((*tables_.of_context[kept.context])[kept.symbol], extra, extra_bits_of(kept.symbol));
  }
  void put_change(const KeptSymbol& kept, std::uint64_t extra) {
    put_difference(kept, extra);
    const WideFrequency& whole = tables_.slots[kept.context];
    put(kept.frequency == whole.frequency ? whole : WideFrequency(kept.frequency), kept.start,
        kGapBits);
    const Symbol gap = gap_symbol(kept.gap);
    put(tables_.gaps[gap.symbol], gap.extra, gap.extra_bits);
  }
  // A stream without words is a state, as short as it can be.
  std::uint8_t* finish(const std::uint8_t* stream_end) {
    if (end_ != stream_end) {
      coder_.store(end_);
      return end_;
    }
    const int num_bytes = (static_cast<int>(std::bit_width(coder_.state)) + 7) / 8;
    end_ -= num_bytes;
    for (int i = 0; i < num_bytes; ++i)
      end_[i] = static_cast<std::uint8_t>(coder_.state >> (8 * i));
    return end_;
  }

 private:
  WideRansEncoder coder_;
  const DeltaEncodeTables& tables_;
  std::uint8_t* end_;
};

// Steps of the coder that a difference takes at most: its symbol, and 62 bits as they are.
constexpr std::size_t kStepsASymbol = 1 + 4;

template <typename Word>
std::vector<std::uint8_t> code_lane(std::span<const std::uint8_t> base,
                                    std::span<const std::uint8_t> changed, const ValueType& type,
                                    const CodedLane& lane, const DeltaCode& code,
                                    const DeltaEncodeTables& tables, DeltaScratch& scratch) {
  const std::size_t num_values = base.size() / sizeof(Word);
  const std::size_t num_dense = code.all_dense() ? num_values : lane.dense.size();
  const std::size_t size =
      4 * ((kStepsASymbol + 1 + 2) * lane.sparse.size() + kStepsASymbol * num_dense) + 8;
  std::uint8_t* const buffer = scratch.stream(size);
  LaneWriter writer(tables, buffer + size);
  const auto put_all = [](const std::vector<KeptSymbol>& symbols,
                          const std::vector<std::uint64_t>& extras, const auto& put) {
    const std::uint64_t* extra = extras.data() + extras.size();
    for (std::size_t k = symbols.size(); k-- > 0;)
      put(symbols[k], extra_bits_of(symbols[k].symbol) > 0 ? *--extra : 0);
  };
  // What the decoder reads last comes first.
  put_all(lane.sparse, lane.sparse_extra,
          [&](const KeptSymbol& kept, std::uint64_t extra) { writer.put_change(kept, extra); });
  if (code.all_dense()) {
    for (std::size_t i = num_values; i-- > 0;) {
      std::uint64_t extra;
      const KeptSymbol kept = dense_symbol<Word>(base, changed, type, code, i, extra);
      writer.put_difference(kept, extra);
    }
  } else {
    put_all(lane.dense, lane.dense_extra, [&](const KeptSymbol& kept, std::uint64_t extra) {
      writer.put_difference(kept, extra);
    });
  }
  const std::uint8_t* const stream = writer.finish(buffer + size);
  header_bytes::Writer front;
  if (!code.all_dense()) front.varint(lane.sparse.size());
  std::vector<std::uint8_t> bytes = front.take();
  bytes.insert(bytes.end(), stream, static_cast<const std::uint8_t*>(buffer + size));
  if (bytes.empty()) bytes.push_back(0);  // a coder that never left 0; no bytes mean no change
  return bytes;
}

}  // namespace

void SymbolCounts::add(const SymbolCounts& other) {
  for (std::size_t s = 0; s < gaps.size(); ++s) gaps[s] += other.gaps[s];
  for (std::size_t c = 0; c < by_context.size(); ++c)
    for (std::size_t s = 0; s < gaps.size(); ++s) by_context[c][s] += other.by_context[c][s];
}

DeltaEncodeTables::DeltaEncodeTables(const DeltaCode& code) : tables(code.tables.size()) {
  const auto fill = [](const RansFrequencies& from, Table& to) {
    std::uint32_t start = 0;
    for (std::size_t s = 0; s < 256; ++s) {
      if (from.frequency[s] == 0) continue;
      to[s] = {WideFrequency(from.frequency[s]), start};
      start += from.frequency[s];
    }
  };
  for (std::size_t t = 0; t < tables.size(); ++t) fill(code.tables[t], tables[t]);
  for (std::size_t c = 0; c < of_context.size(); ++c) of_context[c] = &tables[code.table_of[c]];
  if (!code.has_gaps()) return;
  fill(code.gaps, gaps);
  const kernels::Hazards hazards = hazards_of(code);
  for (int c = 1; c < kClasses; ++c)
    if (hazards[c] > 0) slots[sparse_context(c)] = WideFrequency(hazards[c]);
}

void count_sample(std::span<const std::uint8_t> base, std::span<const std::uint8_t> changed,
                  const ValueType& type, std::size_t step, DeltaCounts& counts) {
  with_word(type.width, [&](auto zero) {
    using Word = decltype(zero);
    const std::size_t num_values = base.size() / sizeof(Word);
    for (std::size_t first = 0; first < num_values; first += step)
      for (std::size_t i = first; i < std::min(first + 64, num_values); ++i) {
        const Word from = load<Word>(base, i);
        const int exponent = exponent_of(from, type);
        ++counts.values[static_cast<std::size_t>(exponent)];
        ++counts.num_sampled;
        if (from != load<Word>(changed, i))
          ++counts.changes_of(static_cast<std::size_t>(
              exponent))[symbol_at<Word>(base, changed, type.kind, i).symbol];
      }
  });
}

CodedLane list_lane(std::span<const std::uint8_t> base, std::span<const std::uint8_t> changed,
                    const ValueType& type, const DeltaCode& code, SymbolCounts& counts,
                    DeltaScratch& scratch) {
  const std::size_t num_values = base.size() / type.width, num_words = (num_values + 63) / 64;
  std::uint64_t *const marks = scratch.marks(), *const dense = scratch.dense_marks();
  CodedLane lane;
  kernels::mark_changes(base.data(), changed.data(), num_values, type.width, marks);
  lane.is_changed = std::any_of(marks, marks + num_words, [](std::uint64_t m) { return m != 0; });
  if (!lane.is_changed) return lane;
  with_word(type.width, [&](auto zero) {
    using Word = decltype(zero);
    const auto count_dense = [&](std::size_t i, std::uint64_t& extra) {
      const KeptSymbol kept = dense_symbol<Word>(base, changed, type, code, i, extra);
      ++counts.by_context[kept.context][kept.symbol];
      return kept;
    };
    std::uint64_t extra;
    if (code.all_dense()) {
      for (std::size_t i = 0; i < num_values; ++i) count_dense(i, extra);
      return;
    }
    kernels::value_classes(base.data(), num_values, type, code.split, scratch.classes(0));
    kernels::mark_dense(scratch.classes(0), num_values, dense);
    KeptSymbol *const first = scratch.kept(), *next = first;
    for_marks(dense, num_values, [&](std::size_t i) {
      *next = count_dense(i, extra);
      if (extra_bits_of(next++->symbol) > 0) lane.dense_extra.push_back(extra);
    });
    lane.dense.assign(first, next);
    for (std::size_t m = 0; m < num_words; ++m) marks[m] &= ~dense[m];
    list_sparse<Word>(base, changed, type, code, marks, counts, scratch, lane);
  });
  return lane;
}

std::vector<std::uint8_t> code_block(std::span<const std::uint8_t> base,
                                     std::span<const std::uint8_t> changed, const ValueType& type,
                                     const CodedBlock& block, const DeltaCode& code,
                                     const DeltaEncodeTables& tables, DeltaScratch& scratch) {
  const std::size_t count = num_lanes(base.size() / type.width);
  if (std::ranges::none_of(block, &CodedLane::is_changed)) return {};
  std::array<std::vector<std::uint8_t>, kMostLanes> lanes;
  for (std::size_t l = 0; l < count; ++l)
    if (block[l].is_changed)
      with_word(type.width, [&](auto zero) {
        using Word = decltype(zero);
        lanes[l] = code_lane<Word>(lane_of(base, type.width, l), lane_of(changed, type.width, l),
                                   type, block[l], code, tables, scratch);
      });
  header_bytes::Writer sizes;
  for (std::size_t l = 0; l < count; ++l) sizes.varint(lanes[l].size());
  std::vector<std::uint8_t> bytes = sizes.take();
  for (const std::vector<std::uint8_t>& lane : lanes)
    bytes.insert(bytes.end(), lane.begin(), lane.end());
  return bytes;
}

}  // namespace slimgrad
