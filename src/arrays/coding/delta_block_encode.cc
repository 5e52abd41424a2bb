#include <algorithm>
#include <bit>
#include <cstring>

#include "arrays/coding/delta_block.h"
#include "formats/header_bytes.h"

namespace slimgrad {
namespace {

using namespace delta_format;
using kernels::KeptSymbol;
using kernels::SymbolTable;
using kernels::WideFrequency;
using kernels::WriteLane;
using Bytes = std::span<const std::uint8_t>;

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
Word load(Bytes values, std::size_t i) {
  Word word;
  std::memcpy(&word, values.data() + i * sizeof(Word), sizeof(Word));
  return word;
}

// All values of a lane; returns where their raw bits end.
std::uint64_t* list_all(Bytes base, Bytes changed, const ValueType& type, const DeltaCode& code,
                        KeptSymbol* kept, std::uint64_t* extras) {
  return kernels::list_dense({base.data(), changed.data(), type, nullptr, base.size() / type.width},
                             code.top, kept, extras);
}

void count(std::span<const KeptSymbol> symbols, SymbolCounts& counts) {
  for (const KeptSymbol& kept : symbols) ++counts.by_context[kept.context][kept.symbol];
}

// A stream without words is a state, as short as it can be.
Bytes finish(WriteLane& lane, const std::uint8_t* stream_end) {
  if (lane.end != stream_end) {
    lane.coder.store(lane.end);
  } else {
    const int num_bytes = (static_cast<int>(std::bit_width(lane.coder.state)) + 7) / 8;
    lane.end -= num_bytes;
    for (int i = 0; i < num_bytes; ++i)
      lane.end[i] = static_cast<std::uint8_t>(lane.coder.state >> (8 * i));
  }
  return {lane.end, stream_end};
}

}  // namespace

void SymbolCounts::add(const SymbolCounts& other) {
  for (std::size_t s = 0; s < gaps.size(); ++s) gaps[s] += other.gaps[s];
  for (std::size_t c = 0; c < by_context.size(); ++c)
    for (std::size_t s = 0; s < gaps.size(); ++s) by_context[c][s] += other.by_context[c][s];
}

DeltaEncodeTables::DeltaEncodeTables(const DeltaCode& code) : tables(code.tables.size()) {
  const auto fill = [](const RansFrequencies& from, SymbolTable& to) {
    std::uint32_t start = 0;
    for (std::size_t s = 0; s < 256; ++s) {
      if (from.frequency[s] == 0) continue;
      to[s] = {WideFrequency(from.frequency[s]), start};
      start += from.frequency[s];
    }
  };
  for (std::size_t t = 0; t < tables.size(); ++t) fill(code.tables[t], tables[t]);
  for (std::size_t c = 0; c < kContexts; ++c) by_context.symbols[c] = &tables[code.table_of[c]];
  if (!code.has_gaps()) return;
  fill(code.gaps, gaps);
  by_context.gaps = &gaps;
  const kernels::Hazards hazards = hazards_of(code);
  for (int c = 1; c < kClasses; ++c)
    if (hazards[c] > 0) by_context.slots[sparse_context(c)] = WideFrequency(hazards[c]);
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
              exponent))[symbol_of(difference(from, load<Word>(changed, i), type.kind)).symbol];
      }
  });
}

CodedLane list_lane(Bytes base, Bytes changed, const ValueType& type, const DeltaCode& code,
                    SymbolCounts& counts, DeltaScratch& scratch) {
  const std::size_t num_values = base.size() / type.width, num_words = (num_values + 63) / 64;
  std::uint64_t *const marks = scratch.marks(), *const dense = scratch.dense_marks();
  CodedLane lane;
  kernels::mark_changes(base.data(), changed.data(), num_values, type.width, marks);
  lane.is_changed = std::any_of(marks, marks + num_words, [](std::uint64_t m) { return m != 0; });
  if (!lane.is_changed) return lane;
  KeptSymbol* const kept = scratch.kept(0);
  std::uint64_t* const extras = scratch.extras(0);
  if (code.all_dense()) {
    list_all(base, changed, type, code, kept, extras);
    count({kept, num_values}, counts);
    return lane;
  }
  std::uint8_t* const classes = scratch.classes(0);
  std::uint32_t *const positions = scratch.positions(0), *const sums = scratch.sums(0);
  kernels::value_classes(base.data(), num_values, type, code.split, classes);
  kernels::mark_dense(classes, num_values, dense);
  for (std::size_t m = 0; m < num_words; ++m) marks[m] &= ~dense[m];
  const std::size_t num_dense = kernels::list_marks(dense, num_values, positions);
  std::uint64_t* extras_end = kernels::list_dense(
      {base.data(), changed.data(), type, positions, num_dense}, code.top, kept, extras);
  lane.num_sparse = kernels::list_marks(marks, num_values, positions);
  if (lane.num_sparse > 0) {
    const kernels::Hazards hazards = hazards_of(code);
    kernels::sum_hazards(classes, num_values, hazards, sums);
    extras_end =
        kernels::list_sparse({base.data(), changed.data(), type, positions, lane.num_sparse},
                             classes, sums, hazards, kept + num_dense, extras_end);
  }
  lane.symbols.assign(kept, kept + num_dense + lane.num_sparse);
  lane.extras.assign(extras, extras_end);
  count(lane.symbols, counts);
  for (const KeptSymbol& change : std::span(lane.symbols).subspan(num_dense))
    ++counts.gaps[gap_symbol(change.gap).symbol];
  return lane;
}

std::vector<std::uint8_t> code_block(Bytes base, Bytes changed, const ValueType& type,
                                     const CodedBlock& block, const DeltaCode& code,
                                     const DeltaEncodeTables& tables, DeltaScratch& scratch) {
  std::array<WriteLane, kMostLanes> lanes;  // that change
  std::array<std::size_t, kMostLanes> sizes;
  std::size_t num_open = 0, size = 0;
  for (std::size_t l = 0; l < num_lanes(base.size() / type.width); ++l) {
    if (!block[l].is_changed) continue;
    WriteLane& lane = lanes[num_open];
    if (code.all_dense()) {
      const Bytes from = lane_of(base, type.width, l);
      KeptSymbol* const kept = scratch.kept(num_open);
      lane.extras_end = list_all(from, lane_of(changed, type.width, l), type, code, kept,
                                 scratch.extras(num_open));
      lane.symbols = {kept, from.size() / type.width};
    } else {
      lane.symbols = block[l].symbols;
      lane.extras_end = block[l].extras.data() + block[l].extras.size();
    }
    constexpr std::size_t kMoreSteps = kernels::kChangeSteps - kernels::kSymbolSteps;
    size +=
        8 + 4 * (kernels::kSymbolSteps * lane.symbols.size() + kMoreSteps * block[l].num_sparse);
    sizes[num_open++] = size;
  }
  if (num_open == 0) return {};
  // Every stream ends where its lane's room does.
  std::uint8_t* const room = scratch.stream(size);
  for (std::size_t k = 0; k < num_open; ++k) lanes[k].end = room + sizes[k];
  kernels::write_symbols(std::span(lanes).first(num_open), tables.by_context);
  std::vector<std::uint8_t> streams;
  header_bytes::Writer front;
  for (std::size_t l = 0, k = 0; l < num_lanes(base.size() / type.width); ++l) {
    if (!block[l].is_changed) {
      front.varint(0);
      continue;
    }
    header_bytes::Writer count;
    if (!code.all_dense()) count.varint(block[l].num_sparse);
    std::vector<std::uint8_t> bytes = count.take();
    const Bytes stream = finish(lanes[k], room + sizes[k]);
    ++k;
    bytes.insert(bytes.end(), stream.begin(), stream.end());
    if (bytes.empty()) bytes.push_back(0);  // a coder that never left 0; no bytes mean no change
    front.varint(bytes.size());
    streams.insert(streams.end(), bytes.begin(), bytes.end());
  }
  std::vector<std::uint8_t> bytes = front.take();
  bytes.insert(bytes.end(), streams.begin(), streams.end());
  return bytes;
}

}  // namespace slimgrad
