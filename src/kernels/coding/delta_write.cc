// No vectors. It is compiled for every target all the same: newer CPUs shift and count bits in
// fewer instructions.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/coding/delta_write.cc"
#include <hwy/foreach_target.h>
// After foreach_target, as Highway asks.
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>

#include "kernels/coding/delta_write.h"
#include "kernels/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace slimgrad::kernels::delta_write::HWY_NAMESPACE {

using namespace delta_format;

template <typename Word>
Word load(const std::uint8_t* values, std::size_t i) {
  Word word;
  std::memcpy(&word, values + i * sizeof(Word), sizeof(Word));
  return word;
}

// function(k, i, the base's bits, symbol) for the k-th value that is listed, value i.
template <typename Word, typename Function>
std::uint64_t* list(const ListedValues& values, std::uint64_t* extras, const Function& function) {
  for (std::size_t k = 0; k < values.count; ++k) {
    const std::size_t i = values.positions == nullptr ? k : values.positions[k];
    const Word from = load<Word>(values.base, i);
    const Symbol symbol =
        symbol_of(difference(from, load<Word>(values.changed, i), values.type.kind));
    *extras = symbol.extra;
    extras += symbol.extra_bits > 0 ? 1 : 0;
    function(k, i, from, symbol.symbol);
  }
  return extras;
}

template <typename Word>
std::uint64_t* dense(const ListedValues& values, int top, KeptSymbol* kept, std::uint64_t* extras) {
  return list<Word>(values, extras,
                    [&](std::size_t k, std::size_t, Word from, std::uint8_t symbol) {
                      const int context = dense_context(exponent_of(from, values.type), top);
                      kept[k] = {static_cast<std::uint8_t>(context), symbol};
                    });
}

// The hazards before a value point into one bucket of 2^16, or its own reach into the next: the
// larger part stands for it.
template <typename Word>
std::uint64_t* sparse(const ListedValues& values, const std::uint8_t* classes,
                      const std::uint32_t* sums, const Hazards& hazards, KeptSymbol* kept,
                      std::uint64_t* extras) {
  std::uint32_t origin = 0;
  return list<Word>(values, extras, [&](std::size_t k, std::size_t i, Word, std::uint8_t symbol) {
    const std::uint32_t before = hazards_before(i, classes, hazards, sums);
    const std::uint32_t hazard = hazards[classes[i]];
    const std::uint32_t low = before - origin, slot = low % kGapUnit;
    origin = before + hazard;
    const std::uint32_t first = std::min(hazard, kGapUnit - slot);
    const std::uint32_t second = 0 - std::uint32_t{hazard - first > first};  // a mask
    KeptSymbol& change = kept[k];
    change.context = static_cast<std::uint8_t>(sparse_context(classes[i]));
    change.symbol = symbol;
    change.gap = static_cast<std::uint16_t>((low + (hazard & second)) >> kGapBits);
    change.start = static_cast<std::uint16_t>(slot & ~second);
    change.frequency = static_cast<std::uint16_t>(first + ((hazard - 2 * first) & second));
  });
}

// One symbol of a lane, the last that is left.
HWY_INLINE void write_last(WriteLane& lane, const WriteTables& tables) {
  const KeptSymbol kept = lane.symbols.back();
  lane.symbols = lane.symbols.first(lane.symbols.size() - 1);
  WideRansEncoder coder = lane.coder;
  std::uint8_t* end = lane.end;
  const WideSymbol& symbol = (*tables.symbols[kept.context])[kept.symbol];
  if (const int bits = extra_bits_of(kept.symbol); bits > 0)
    coder.put_raw(*--lane.extras_end, bits, end);
  coder.put(symbol.start, symbol.frequency, kRansBits, end);
  if (kept.frequency > 0) {
    const WideFrequency& whole = tables.slots[kept.context];
    if (kept.frequency == whole.frequency)
      coder.put(kept.start, whole, kGapBits, end);
    else
      coder.put(kept.start, WideFrequency(kept.frequency), kGapBits, end);
    const Symbol gap = gap_symbol(kept.gap);
    if (gap.extra_bits > 0) coder.put_raw(gap.extra, gap.extra_bits, end);
    const WideSymbol& of_gap = (*tables.gaps)[gap.symbol];
    coder.put(of_gap.start, of_gap.frequency, kRansBits, end);
  }
  lane.coder = coder;
  lane.end = end;
}

void write(std::span<WriteLane> lanes, const WriteTables& tables) {
  std::size_t least = ~std::size_t{0}, most = 0;
  for (const WriteLane& lane : lanes) {
    least = std::min(least, lane.symbols.size());
    most = std::max(most, lane.symbols.size());
  }
  least = std::min(least, most);  // without lanes
  for (std::size_t k = 0; k < least; ++k)
    for (WriteLane& lane : lanes) write_last(lane, tables);
  for (std::size_t k = least; k < most; ++k)
    for (WriteLane& lane : lanes)
      if (!lane.symbols.empty()) write_last(lane, tables);
}

std::uint64_t* list_dense(const ListedValues& values, int top, KeptSymbol* kept,
                          std::uint64_t* extras) {
  switch (values.type.width) {
    case 1:
      return dense<std::uint8_t>(values, top, kept, extras);
    case 2:
      return dense<std::uint16_t>(values, top, kept, extras);
    case 4:
      return dense<std::uint32_t>(values, top, kept, extras);
    default:
      return dense<std::uint64_t>(values, top, kept, extras);
  }
}

std::uint64_t* list_sparse(const ListedValues& values, const std::uint8_t* classes,
                           const std::uint32_t* sums, const Hazards& hazards, KeptSymbol* kept,
                           std::uint64_t* extras) {
  switch (values.type.width) {
    case 1:
      return sparse<std::uint8_t>(values, classes, sums, hazards, kept, extras);
    case 2:
      return sparse<std::uint16_t>(values, classes, sums, hazards, kept, extras);
    case 4:
      return sparse<std::uint32_t>(values, classes, sums, hazards, kept, extras);
    default:
      return sparse<std::uint64_t>(values, classes, sums, hazards, kept, extras);
  }
}

}  // namespace slimgrad::kernels::delta_write::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace slimgrad::kernels {
namespace delta_write {
HWY_EXPORT(list_dense);
HWY_EXPORT(list_sparse);
HWY_EXPORT(write);
}  // namespace delta_write

std::uint64_t* list_dense(const ListedValues& values, int top, KeptSymbol* kept,
                          std::uint64_t* extras) noexcept {
  using namespace delta_write;
  return HWY_DYNAMIC_DISPATCH(list_dense)(values, top, kept, extras);
}

std::uint64_t* list_sparse(const ListedValues& values, const std::uint8_t* classes,
                           const std::uint32_t* sums, const Hazards& hazards, KeptSymbol* kept,
                           std::uint64_t* extras) noexcept {
  using namespace delta_write;
  return HWY_DYNAMIC_DISPATCH(list_sparse)(values, classes, sums, hazards, kept, extras);
}

void write_symbols(std::span<WriteLane> lanes, const WriteTables& tables) noexcept {
  using namespace delta_write;
  HWY_DYNAMIC_DISPATCH(write)(lanes, tables);
}

}  // namespace slimgrad::kernels
#endif  // HWY_ONCE
