#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/coding/delta_scan.cc"
#include <hwy/foreach_target.h>
// After foreach_target, as Highway asks.
#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "kernels/coding/delta_scan.h"
#include "kernels/dispatch.h"

#ifndef SLIMGRAD_KERNELS_DELTA_SCAN_ONCE_
#define SLIMGRAD_KERNELS_DELTA_SCAN_ONCE_
namespace slimgrad::kernels::delta_scan {

using delta_format::kGapBits;
using delta_format::ValueKind;
using delta_format::ValueType;

template <typename Word>
Word load(const std::uint8_t* values, std::size_t i) noexcept {
  Word word;
  std::memcpy(&word, values + i * sizeof(Word), sizeof(Word));
  return word;
}

// The plain forms, which are the specification: from value `first` on, for all that are left.
template <typename Word>
void mark_plainly(const std::uint8_t* base, const std::uint8_t* changed, std::size_t first,
                  std::size_t num_values, std::uint64_t* marks) noexcept {
  for (std::size_t i = first; i < num_values; ++i) {
    if (i % 64 == 0) marks[i / 64] = 0;
    const bool differs = load<Word>(base, i) != load<Word>(changed, i);
    marks[i / 64] |= std::uint64_t{differs} << i % 64;
  }
}

template <typename Word>
void classes_plainly(const std::uint8_t* values, std::size_t first, std::size_t num_values,
                     const ValueType& type, int split, std::uint8_t* classes) noexcept {
  for (std::size_t i = first; i < num_values; ++i)
    classes[i] = static_cast<std::uint8_t>(
        delta_format::class_of(delta_format::exponent_of(load<Word>(values, i), type), split));
}

inline void sums_plainly(const std::uint8_t* classes, std::size_t first_group,
                         std::size_t num_groups, const Hazards& hazards,
                         std::uint32_t* sums) noexcept {
  for (std::size_t g = first_group; g < num_groups; ++g) {
    sums[g + 1] = sums[g];
    for (std::size_t i = 8 * g; i < 8 * g + 8; ++i) sums[g + 1] += hazards[classes[i]];
  }
}

}  // namespace slimgrad::kernels::delta_scan
#endif  // SLIMGRAD_KERNELS_DELTA_SCAN_ONCE_

HWY_BEFORE_NAMESPACE();
namespace slimgrad::kernels::delta_scan::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Functions that return a number return how many values, or groups, they did.

// `is_marked(i)`: a mask of the lanes from value i on. Whole words of marks only.
template <typename Word, typename IsMarked>
std::size_t mark_where([[maybe_unused]] std::size_t num_values,
                       [[maybe_unused]] std::uint64_t* marks,
                       [[maybe_unused]] const IsMarked& is_marked) {
#if HWY_TARGET == HWY_SCALAR
  return 0;
#else
  const hn::ScalableTag<Word> d;
  const std::size_t lanes = hn::Lanes(d), whole = num_values / 64 * 64;
  for (std::size_t i = 0; i < whole; i += 64) {
    std::uint64_t word = 0;
    for (std::size_t k = 0; k < 64; k += lanes) {
      std::uint8_t bits[8] = {};  // Highway wants room for eight
      hn::StoreMaskBits(d, is_marked(i + k), bits);
      std::uint64_t part;
      std::memcpy(&part, bits, 8);
      word |= part << k;
    }
    marks[i / 64] = word;
  }
  return whole;
#endif
}

template <typename Word>
std::size_t mark(const std::uint8_t* base, const std::uint8_t* changed, std::size_t num_values,
                 std::uint64_t* marks) {
  const hn::ScalableTag<Word> d;
  const auto* const a = reinterpret_cast<const Word*>(base);
  const auto* const b = reinterpret_cast<const Word*>(changed);
  return mark_where<Word>(num_values, marks, [&](std::size_t i) {
    return hn::Ne(hn::LoadU(d, a + i), hn::LoadU(d, b + i));
  });
}

std::size_t mark_zeros(const std::uint8_t* classes, std::size_t num_values, std::uint64_t* marks) {
  const hn::ScalableTag<std::uint8_t> d;
  return mark_where<std::uint8_t>(num_values, marks, [&](std::size_t i) {
    return hn::Eq(hn::LoadU(d, classes + i), hn::Zero(d));
  });
}

// Four at a time, whether there are so many or not: where marks are set, and how many are, is
// random, and a branch for each would not be foreseen. Compiled for every target for its
// instructions on bits.
std::size_t positions_of(const std::uint64_t* marks, std::size_t num_values,
                         std::uint32_t* positions) {
  constexpr std::uint64_t kHighest = std::uint64_t{1} << 63;
  std::size_t count = 0;
  for (std::size_t m = 0; m < (num_values + 63) / 64; ++m) {
    std::uint64_t word = marks[m];
    const auto num_marks = static_cast<std::size_t>(std::popcount(word));
    const auto first = static_cast<std::uint32_t>(64 * m);
    std::size_t k = 0;
    do {  // The highest bit makes no difference while a mark is left, and after that nobody looks.
      for (std::size_t i = k; i < k + kMarkMargin; ++i, word &= word - 1)
        positions[count + i] =
            first + static_cast<std::uint32_t>(std::countr_zero(word | kHighest));
      k += kMarkMargin;
    } while (k < num_marks);
    count += num_marks;
  }
  return count;
}

template <typename Word>
std::size_t classes_of([[maybe_unused]] const std::uint8_t* values,
                       [[maybe_unused]] std::size_t num_values,
                       [[maybe_unused]] const ValueType& type, [[maybe_unused]] int split,
                       [[maybe_unused]] std::uint8_t* classes) {
#if HWY_TARGET == HWY_SCALAR
  return 0;
#else
  const hn::ScalableTag<Word> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<std::uint8_t, decltype(d)> d8;
  const std::size_t lanes = hn::Lanes(d);
  const auto* const from = reinterpret_cast<const Word*>(values);
  const auto magnitudes = hn::Set(d, static_cast<Word>(std::numeric_limits<Word>::max() >> 1));
  const auto splits = hn::Set(di, static_cast<hwy::MakeSigned<Word> >(split));
  const auto top = hn::Set(di, delta_format::kClasses - 1);
  const auto zero_class = hn::Set(di, static_cast<hwy::MakeSigned<Word> >(delta_format::class_of(
                                          delta_format::kZeroExponent, split)));
  std::size_t i = 0;
  for (; i + lanes <= num_values; i += lanes) {
    const auto magnitude = hn::And(hn::LoadU(d, from + i), magnitudes);
    const auto exponent = hn::BitCast(di, hn::ShiftRightSame(magnitude, type.mantissa_bits));
    const auto above = hn::Min(hn::Max(hn::Sub(exponent, splits), hn::Zero(di)), top);
    const auto is_zero = hn::Eq(hn::BitCast(di, magnitude), hn::Zero(di));
    hn::StoreU(hn::DemoteTo(d8, hn::IfThenElse(is_zero, zero_class, above)), d8, classes + i);
  }
  return i;
#endif
}

std::size_t sum_groups([[maybe_unused]] const std::uint8_t* classes,
                       [[maybe_unused]] std::size_t num_groups,
                       [[maybe_unused]] const Hazards& hazards,
                       [[maybe_unused]] std::uint32_t* sums) {
#if HWY_TARGET == HWY_SCALAR
  return 0;
#else
  const hn::ScalableTag<std::uint8_t> d;
  const hn::RepartitionToWide<hn::RepartitionToWide<hn::RepartitionToWide<decltype(d)> > > d64;
  const std::size_t lanes = hn::Lanes(d64);  // groups at once
  alignas(16) std::uint8_t low_bytes[16], high_bytes[16];
  for (int c = 0; c < 16; ++c) {
    low_bytes[c] = static_cast<std::uint8_t>(hazards[c]);
    high_bytes[c] = static_cast<std::uint8_t>(hazards[c] >> 8);
  }
  const auto low = hn::LoadDup128(d, low_bytes), high = hn::LoadDup128(d, high_bytes);
  alignas(64) std::uint64_t of_groups[8];
  std::uint32_t sum = 0;
  std::size_t g = 0;
  for (; g + lanes <= num_groups; g += lanes) {
    const auto eights = hn::LoadU(d, classes + 8 * g);
    const auto lows = hn::SumsOf8(hn::TableLookupBytes(low, eights));
    const auto highs = hn::SumsOf8(hn::TableLookupBytes(high, eights));
    hn::Store(hn::Add(lows, hn::ShiftLeft<8>(highs)), d64, of_groups);
    for (std::size_t k = 0; k < lanes; ++k) {
      sum += static_cast<std::uint32_t>(of_groups[k]);
      sums[g + k + 1] = sum;
    }
  }
  return g;
#endif
}

template <typename Word>
HWY_INLINE void decode_value(ChangeLane& lane, std::size_t k, const ValueType& type,
                             const ChangeTables& tables) {
  const std::size_t i = lane.positions == nullptr ? k : lane.positions[k];
  const Word from = load<Word>(lane.values, i);
  WideRansDecoder decoder = lane.decoder;
  WideRansWords words = lane.words;
  const auto exponent = static_cast<std::size_t>(delta_format::exponent_of(from, type));
  // Whether a dense value changed is not foreseen: one that did not is written, too.
  const std::uint8_t symbol = decoder.symbol(tables.dense[exponent], words);
  const std::uint64_t extra =
      symbol < 15 ? 0 : decoder.raw(delta_format::extra_bits_of(symbol), words);
  const Word to =
      delta_format::add_difference(from, delta_format::difference_of(symbol, extra), type.kind);
  std::memcpy(lane.values + i * sizeof(Word), &to, sizeof(Word));
  lane.decoder = decoder;
  lane.words = words;
}

template <typename Word>
void decode_dense_of(std::span<ChangeLane> lanes, const ValueType& type,
                     const ChangeTables& tables) {
  std::size_t least = ~std::size_t{0}, most = 0;
  for (const ChangeLane& lane : lanes) {
    least = std::min(least, lane.num_dense);
    most = std::max(most, lane.num_dense);
  }
  least = std::min(least, most);  // without lanes
  for (std::size_t k = 0; k < least; ++k)
    for (ChangeLane& lane : lanes) decode_value<Word>(lane, k, type, tables);
  for (std::size_t k = least; k < most; ++k)
    for (ChangeLane& lane : lanes)
      if (k < lane.num_dense) decode_value<Word>(lane, k, type, tables);
}

void dense_of_width(std::span<ChangeLane> lanes, const ValueType& type,
                    const ChangeTables& tables) {
  switch (type.width) {
    case 1:
      return decode_dense_of<std::uint8_t>(lanes, type, tables);
    case 2:
      return decode_dense_of<std::uint16_t>(lanes, type, tables);
    case 4:
      return decode_dense_of<std::uint32_t>(lanes, type, tables);
    default:
      return decode_dense_of<std::uint64_t>(lanes, type, tables);
  }
}

// Where a lane stands.
struct LaneState {
  std::uint32_t origin = 0;  // the hazards up to and with the last change
  std::size_t group = 0;
};

// A value of a group of eight: its place, its hazard and those of the values before it.
struct InGroup {
  std::uint32_t index, before, hazard;
};

template <typename Search>
HWY_INLINE bool decode_change(ChangeLane& lane, LaneState& at, std::size_t k,
                              const ChangeTables& tables, const Search& search) noexcept {
  WideRansDecoder decoder = lane.decoder;
  WideRansWords words = lane.words;
  const std::uint8_t gap_symbol = decoder.symbol(tables.gaps, words);
  std::uint64_t extra = 0;
  if (gap_symbol >= 16) extra = decoder.raw(delta_format::gap_extra_bits(gap_symbol), words);
  const std::uint32_t bucket = delta_format::gap_of(gap_symbol, extra) << kGapBits;
  const std::uint32_t slot = decoder.slot(kGapBits), origin = at.origin;
  if (lane.sums[(lane.num_values + 7) / 8] - origin <= (bucket | slot)) return false;
  const std::uint32_t target = origin + (bucket | slot);
  const std::size_t group = search.group(lane.sums, at.group, target);
  const std::uint8_t* const eight = lane.classes + 8 * group;
  const InGroup found = search.within(eight, target - lane.sums[group]);
  const std::uint32_t before = lane.sums[group] + found.before, hazard = found.hazard;
  const std::uint8_t value_class = eight[found.index];
  const std::uint32_t low = before - origin, high = low + hazard;
  const std::uint32_t start = std::max(low, bucket) - bucket;
  const std::uint32_t stop = std::min(high - bucket, delta_format::kGapUnit);
  decoder.take(slot - start, stop - start, kGapBits, words);
  at = {before + hazard, group};
  DeltaChange& change = lane.changes[k];
  change.position = static_cast<std::uint32_t>(8 * group) + found.index;
  change.symbol = decoder.symbol(tables.symbols[value_class], words);
  change.extra =
      change.symbol < 15 ? 0 : decoder.raw(delta_format::extra_bits_of(change.symbol), words);
  lane.decoder = decoder;
  lane.words = words;
  return true;
}

template <typename Search>
HWY_INLINE bool decode_all(std::span<ChangeLane> lanes, const ChangeTables& tables,
                           const Search& search) noexcept {
  std::array<LaneState, kMostTurns> at;
  std::size_t most = 0, least = ~std::size_t{0};
  for (const ChangeLane& lane : lanes) {
    most = std::max(most, lane.num_changes);
    least = std::min(least, lane.num_changes);
  }
  least = std::min(least, most);  // without lanes
  for (std::size_t k = 0; k < least; ++k)
    for (std::size_t l = 0; l < lanes.size(); ++l)
      if (!decode_change(lanes[l], at[l], k, tables, search)) return false;
  for (std::size_t k = least; k < most; ++k)
    for (std::size_t l = 0; l < lanes.size(); ++l)
      if (k < lanes[l].num_changes && !decode_change(lanes[l], at[l], k, tables, search))
        return false;
  return true;
}

// group(): the first from `group` on whose hazards reach beyond the target. within(): the first of
// eight whose hazard reaches beyond the rest. No branch depends on which it is.
struct PlainSearch {
  const Hazards& hazards;

  HWY_INLINE std::size_t group(const std::uint32_t* sums, std::size_t group,
                               std::uint32_t target) const {
    while (sums[group + 1] <= target) ++group;
    return group;
  }
  HWY_INLINE InGroup within(const std::uint8_t* eight, std::uint32_t rest) const {
    InGroup found = {};
    std::uint32_t sum = 0;
    for (int i = 0; i < 7; ++i) {
      sum += hazards[eight[i]];
      const std::uint32_t passed = 0 - std::uint32_t{sum <= rest};  // a mask
      found.index -= passed;
      found.before += hazards[eight[i]] & passed;
    }
    found.hazard = hazards[eight[found.index]];
    return found;
  }
};

#if HWY_TARGET == HWY_SCALAR
using VectorSearch = PlainSearch;
#else
struct VectorSearch {
  explicit VectorSearch(const Hazards& hazards) {
    for (std::size_t c = 0; c < hazards.size(); ++c) {
      low[c] = static_cast<std::uint8_t>(hazards[c]);
      high[c] = static_cast<std::uint8_t>(hazards[c] >> 8);
    }
  }
  HWY_INLINE std::size_t group(const std::uint32_t* sums, std::size_t group,
                               std::uint32_t target) const {
    const hn::CappedTag<std::uint32_t, kSumMargin> d;
    const auto targets = hn::Set(d, target);
    for (;; group += hn::Lanes(d)) {
      const auto beyond = hn::Gt(hn::LoadU(d, sums + group + 1), targets);
      const std::intptr_t first = hn::FindFirstTrue(d, beyond);
      if (first >= 0) return group + static_cast<std::size_t>(first);
    }
  }
  HWY_INLINE InGroup within(const std::uint8_t* eight, std::uint32_t rest) const {
    const hn::FixedTag<std::uint8_t, 16> d8;  // of which eight are used
    const hn::FixedTag<std::uint16_t, 8> d16;
    const hn::FixedTag<std::uint32_t, 4> d32;
    const auto classes = hn::LoadU(d8, eight);
    const auto hazards =
        hn::BitCast(d16, hn::InterleaveLower(d8, hn::TableLookupBytes(hn::Load(d8, low), classes),
                                             hn::TableLookupBytes(hn::Load(d8, high), classes)));
    const auto zero = hn::Zero(d16);
    auto first = hn::BitCast(d32, hn::InterleaveLower(d16, hazards, zero));
    auto second = hn::BitCast(d32, hn::InterleaveUpper(d16, hazards, zero));
    first = hn::Add(first, hn::ShiftLeftLanes<1>(d32, first));
    second = hn::Add(second, hn::ShiftLeftLanes<1>(d32, second));
    first = hn::Add(first, hn::ShiftLeftLanes<2>(d32, first));
    second = hn::Add(second, hn::ShiftLeftLanes<2>(d32, second));
    second = hn::Add(second, hn::Broadcast<3>(first));
    alignas(16) std::uint32_t sums[12] = {};  // from 4 on, with a 0 before
    hn::Store(first, d32, sums + 4);
    hn::Store(second, d32, sums + 8);
    const auto rests = hn::Set(d32, rest);
    const std::size_t index =
        8 - hn::CountTrue(d32, hn::Gt(first, rests)) - hn::CountTrue(d32, hn::Gt(second, rests));
    return {static_cast<std::uint32_t>(index), sums[3 + index], sums[4 + index] - sums[3 + index]};
  }

  alignas(16) std::uint8_t low[16], high[16];
};
#endif

bool decode_lanes(std::span<ChangeLane> lanes, const ChangeTables& tables) {
  return decode_all(lanes, tables, VectorSearch{tables.hazards});
}
bool decode_plainly(std::span<ChangeLane> lanes, const ChangeTables& tables) {
  return decode_all(lanes, tables, PlainSearch{tables.hazards});
}

std::size_t mark1(const std::uint8_t* a, const std::uint8_t* b, std::size_t n, std::uint64_t* m) {
  return mark<std::uint8_t>(a, b, n, m);
}
std::size_t mark2(const std::uint8_t* a, const std::uint8_t* b, std::size_t n, std::uint64_t* m) {
  return mark<std::uint16_t>(a, b, n, m);
}
std::size_t mark4(const std::uint8_t* a, const std::uint8_t* b, std::size_t n, std::uint64_t* m) {
  return mark<std::uint32_t>(a, b, n, m);
}
std::size_t classes2(const std::uint8_t* values, std::size_t num_values, const ValueType& type,
                     int split, std::uint8_t* classes) {
  return classes_of<std::uint16_t>(values, num_values, type, split, classes);
}
std::size_t classes4(const std::uint8_t* values, std::size_t num_values, const ValueType& type,
                     int split, std::uint8_t* classes) {
  return classes_of<std::uint32_t>(values, num_values, type, split, classes);
}

}  // namespace slimgrad::kernels::delta_scan::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace slimgrad::kernels {
namespace delta_scan {
HWY_EXPORT(mark1);
HWY_EXPORT(mark2);
HWY_EXPORT(mark4);
HWY_EXPORT(classes2);
HWY_EXPORT(classes4);
HWY_EXPORT(mark_zeros);
HWY_EXPORT(positions_of);
HWY_EXPORT(sum_groups);
HWY_EXPORT(dense_of_width);
HWY_EXPORT(decode_lanes);
}  // namespace delta_scan

void mark_changes(const std::uint8_t* base, const std::uint8_t* changed, std::size_t num_values,
                  std::size_t width, std::uint64_t* marks) noexcept {
  using namespace delta_scan;
  const bool plain = use_scalar();
  std::size_t done = 0;
  switch (width) {
    case 1:
      if (!plain) done = HWY_DYNAMIC_DISPATCH(mark1)(base, changed, num_values, marks);
      return mark_plainly<std::uint8_t>(base, changed, done, num_values, marks);
    case 2:
      if (!plain) done = HWY_DYNAMIC_DISPATCH(mark2)(base, changed, num_values, marks);
      return mark_plainly<std::uint16_t>(base, changed, done, num_values, marks);
    case 4:
      if (!plain) done = HWY_DYNAMIC_DISPATCH(mark4)(base, changed, num_values, marks);
      return mark_plainly<std::uint32_t>(base, changed, done, num_values, marks);
    default:
      return mark_plainly<std::uint64_t>(base, changed, 0, num_values, marks);
  }
}

void mark_dense(const std::uint8_t* classes, std::size_t num_values,
                std::uint64_t* marks) noexcept {
  using namespace delta_scan;
  const std::size_t done =
      use_scalar() ? 0 : HWY_DYNAMIC_DISPATCH(mark_zeros)(classes, num_values, marks);
  for (std::size_t i = done; i < num_values; ++i) {
    if (i % 64 == 0) marks[i / 64] = 0;
    marks[i / 64] |= std::uint64_t{classes[i] == 0} << i % 64;
  }
}

std::size_t list_marks(const std::uint64_t* marks, std::size_t num_values,
                       std::uint32_t* positions) noexcept {
  using namespace delta_scan;
  return HWY_DYNAMIC_DISPATCH(positions_of)(marks, num_values, positions);
}

void value_classes(const std::uint8_t* values, std::size_t num_values,
                   const delta_format::ValueType& type, int split, std::uint8_t* classes) noexcept {
  using namespace delta_scan;
  const bool vectors = !use_scalar() && type.kind == ValueKind::kFloat;
  std::size_t done = 0;
  switch (type.width) {
    case 1:
      classes_plainly<std::uint8_t>(values, 0, num_values, type, split, classes);
      break;
    case 2:
      if (vectors) done = HWY_DYNAMIC_DISPATCH(classes2)(values, num_values, type, split, classes);
      classes_plainly<std::uint16_t>(values, done, num_values, type, split, classes);
      break;
    case 4:
      if (vectors) done = HWY_DYNAMIC_DISPATCH(classes4)(values, num_values, type, split, classes);
      classes_plainly<std::uint32_t>(values, done, num_values, type, split, classes);
      break;
    default:
      classes_plainly<std::uint64_t>(values, 0, num_values, type, split, classes);
  }
  std::fill_n(classes + num_values, kClassMargin, std::uint8_t{0});
}

void sum_hazards(const std::uint8_t* classes, std::size_t num_values, const Hazards& hazards,
                 std::uint32_t* sums) noexcept {
  using namespace delta_scan;
  const std::size_t num_groups = (num_values + 7) / 8;
  sums[0] = 0;
  std::size_t done = 0;
  if (!use_scalar()) done = HWY_DYNAMIC_DISPATCH(sum_groups)(classes, num_groups, hazards, sums);
  sums_plainly(classes, done, num_groups, hazards, sums);
  std::fill_n(sums + num_groups + 1, kSumMargin, std::numeric_limits<std::uint32_t>::max());
}

void decode_dense(std::span<ChangeLane> lanes, const delta_format::ValueType& type,
                  const ChangeTables& tables) noexcept {
  using namespace delta_scan;
  HWY_DYNAMIC_DISPATCH(dense_of_width)(lanes, type, tables);
}

bool decode_changes(std::span<ChangeLane> lanes, const ChangeTables& tables) noexcept {
  using namespace delta_scan;
  return use_scalar() ? HWY_STATIC_DISPATCH(decode_plainly)(lanes, tables)
                      : HWY_DYNAMIC_DISPATCH(decode_lanes)(lanes, tables);
}

}  // namespace slimgrad::kernels
#endif  // HWY_ONCE
