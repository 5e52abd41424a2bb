// Codes to numbers: saved::Levels for all lanes, and what types of 16 bits make of it. Included
// once per target.
#if defined(SLIMGRAD_KERNELS_SAVED_LEVELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLIMGRAD_KERNELS_SAVED_LEVELS_INL_H_
#undef SLIMGRAD_KERNELS_SAVED_LEVELS_INL_H_
#else
#define SLIMGRAD_KERNELS_SAVED_LEVELS_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

#include "formats/saved.h"
#include "formats/value_types.h"
#include "kernels/half_float-inl.h"

HWY_BEFORE_NAMESPACE();
namespace slimgrad::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// saved::Levels::at.
template <bool kHasZeros, class F32, class V>
HWY_INLINE hn::Vec<F32> levels_at(F32 f32, V codes, hn::Vec<F32> lowest, hn::Vec<F32> step) {
  const hn::RebindToUnsigned<F32> u32;
  const hn::RebindToSigned<F32> i32;
  const auto steps = kHasZeros ? hn::Sub(codes, hn::Set(u32, 1)) : codes;
  const auto x = hn::MulAdd(hn::ConvertTo(f32, hn::BitCast(i32, steps)), step, lowest);
  if constexpr (!kHasZeros) return x;
  return hn::IfThenZeroElse(hn::RebindMask(f32, hn::Eq(codes, hn::Zero(u32))), x);
}

// As numbers of the array's type, in its range: the uppermost level may lie above it, because its
// step is rounded up.
template <bool kHasZeros, typename T, class F32, class V>
HWY_INLINE void store_levels(F32 f32, V codes, hn::Vec<F32> lowest, hn::Vec<F32> step, T* to) {
  auto x = levels_at<kHasZeros>(f32, codes, lowest, step);
  if constexpr (sizeof(T) == 2) {
    const auto largest = hn::Set(f32, kLargest<T>);
    x = hn::IfThenElse(hn::Gt(hn::Abs(x), largest), hn::CopySign(largest, x), x);  // not NaN
  }
  store_floats(f32, x, to);
}

#if HWY_TARGET != HWY_SCALAR

// ---- tables ------------------------------------------------------------------------------------
//
// 2 or 4 bits have so few codes that a group's levels are computed once, as numbers of 16 bits, and
// looked up: their lower and upper bytes apart, 16 of each in a table. A half of a word holds the
// codes of rows that follow each other, a byte of it those of half of these; so the two bytes of a
// lane are looked up together, and then put together with their other halves.
//
// With 2 bits a table holds the levels of the lower byte's rows and, from 4 on, those of the upper
// byte's, which may be another group.
template <int kBits>
class LevelTable {
 public:
  using U16 = hn::CappedTag<std::uint16_t, fewbit::kNumColumns>;
  static constexpr std::size_t kRowsOfByte = 8 / kBits;

  // Written out, because GCC compiles an implicit constructor for the wrong target.
  HWY_INLINE LevelTable() { lower_ = upper_ = hn::Zero(U8()); }

  // scales: of the group of the lower byte's rows, and of the upper's.
  template <typename T>
  HWY_INLINE void fill(std::uint32_t lower, std::uint32_t upper, T type) {
    HWY_ALIGN T levels[16] = {};
    add(lower, levels);
    if constexpr (kBits == 2) add(upper, levels + 4);
    (void)upper, (void)type;
    const hn::CappedTag<std::uint16_t, 8> d8;
    const hn::Repartition<std::uint8_t, decltype(d8)> bytes;
    const auto first = hn::BitCast(bytes, hn::Load(d8, &levels[0].bits));
    const auto second = hn::BitCast(bytes, hn::Load(d8, &levels[8].bits));
    lower_ = both(hn::ConcatEven(bytes, second, first));
    upper_ = both(hn::ConcatOdd(bytes, second, first));
  }

  // Unpacks the codes in a half, row by row; a row's values begin 16 behind the previous row's.
  template <typename T>
  HWY_INLINE void unpack(hn::Vec<U16> codes, T* values) const {
    const U16 u16;
    const U8 u8;
    constexpr auto kMask = static_cast<std::uint16_t>(kBits == 4 ? 0x0f0f : 0x0303);
    for (std::size_t k = 0; k < kRowsOfByte; ++k) {
      auto index = hn::And(codes, hn::Set(u16, kMask));
      if constexpr (kBits == 2) index = hn::Or(index, hn::Set(u16, 0x0400));
      codes = hn::ShiftRight<kBits>(codes);
      const auto lower = hn::BitCast(u16, hn::TableLookupBytes(lower_, hn::BitCast(u8, index)));
      const auto upper = hn::BitCast(u16, hn::TableLookupBytes(upper_, hn::BitCast(u8, index)));
      const auto first = hn::OrAnd(hn::ShiftLeft<8>(upper), lower, hn::Set(u16, 0x00ff));
      const auto second = hn::OrAnd(hn::ShiftRight<8>(lower), upper, hn::Set(u16, 0xff00));
      hn::StoreU(first, u16, &values[k * fewbit::kNumColumns].bits);
      hn::StoreU(second, u16, &values[(k + kRowsOfByte) * fewbit::kNumColumns].bits);
    }
  }

 private:
  using U8 = hn::Repartition<std::uint8_t, U16>;
  static constexpr std::size_t kLevels = std::size_t{1} << kBits;

  template <typename T>
  static HWY_INLINE void add(std::uint32_t scale, T* to) {
    const hn::CappedTag<float, kLevels> f32;
    const hn::RebindToUnsigned<decltype(f32)> u32;
    const saved::Levels levels(scale);
    const auto lowest = hn::Set(f32, levels.lowest), step = hn::Set(f32, levels.step);
    for (std::size_t i = 0; i < kLevels; i += hn::Lanes(f32)) {
      const auto codes = hn::Iota(u32, static_cast<std::uint32_t>(i));
      if (levels.has_zeros)
        store_levels<true>(f32, codes, lowest, step, to + i);
      else
        store_levels<false>(f32, codes, lowest, step, to + i);
    }
  }

  template <class V>
  static HWY_INLINE hn::Vec<U8> both(V bytes) {
    if constexpr (hn::MaxLanes(U8()) == 32)
      return hn::Combine(U8(), bytes, bytes);
    else
      return bytes;
  }

  hn::Vec<U8> lower_, upper_;
};

// A block of 2 or 4 bits. REQUIRES: a group has at least kTableRows rows.
inline constexpr std::size_t kTableRows = 4;
template <int kBits, typename T>
HWY_INLINE void unpack_block_by_table(const std::uint32_t* words, const std::uint32_t* scales,
                                      const saved::RowGroups& groups, T* values) {
  using Table = LevelTable<kBits>;
  const typename Table::U16 u16;
  constexpr std::size_t kLanes = hn::MaxLanes(u16);
  constexpr std::size_t kNumVectors = fewbit::kNumColumns / kLanes;
  constexpr std::size_t kRowsOfHalf = 2 * Table::kRowsOfByte;
  static_assert(kBits == 2 || kRowsOfHalf == kTableRows);
  Table table;
  std::size_t first_group = ~std::size_t{0};
  for (std::size_t w = 0; w < kBits; ++w, words += fewbit::kNumColumns) {
    hn::Vec<typename Table::U16> halves[2][kNumVectors];
    const auto* const from = reinterpret_cast<const std::uint16_t*>(words);
    for (std::size_t v = 0; v < kNumVectors; ++v)
      hn::LoadInterleaved2(u16, from + 2 * v * kLanes, halves[0][v], halves[1][v]);
    for (std::size_t half = 0; half < 2; ++half) {
      const std::size_t row = (2 * w + half) * kRowsOfHalf;
      const std::size_t group = groups.of(row);
      if (group != first_group) {
        first_group = group;
        table.fill(scales[group], scales[groups.of(row + Table::kRowsOfByte)], T());
      }
      for (std::size_t v = 0; v < kNumVectors; ++v)
        table.unpack(halves[half][v], values + row * fewbit::kNumColumns + v * kLanes);
    }
  }
}

// ---- bfloat16 of 8 bits ------------------------------------------------------------------------

// Where in 16 bytes a byte of each word lies; 0 above.
struct ByteOfWord {
  alignas(16) std::uint32_t lanes[4];
  constexpr explicit ByteOfWord(std::uint32_t byte) : lanes() {
    for (std::uint32_t lane = 0; lane < 4; ++lane)
      lanes[lane] = (0x80808000u | byte) + 0x04040404u * lane;
  }
};
inline constexpr ByteOfWord kByteOfWord[] = {ByteOfWord(0), ByteOfWord(1), ByteOfWord(2),
                                             ByteOfWord(3)};

// Whether no level needs a look at the type's range, or is NaN.
HWY_INLINE bool is_within_bfloat16(const saved::Levels& levels) {
  return levels.lowest >= -kLargest<BFloat16Bits> && levels.at(255) <= kLargest<BFloat16Bits>;
}

// Even and odd columns apart, and the two put together as halves of a word. Returns false, and
// does nothing, where the levels of a group are not within the range.
HWY_INLINE bool unpack_block_of_bytes(const std::uint32_t* words, const std::uint32_t* scales,
                                      const saved::RowGroups& groups, BFloat16Bits* values) {
  const hn::CappedTag<float, fewbit::kNumColumns / 2> f32;
  const hn::RebindToUnsigned<decltype(f32)> u32;
  const hn::Repartition<std::uint16_t, decltype(u32)> u16;
  constexpr std::size_t kLanes = hn::MaxLanes(f32);
  constexpr std::size_t kNumVectors = fewbit::kNumColumns / kLanes;
  using Words = hn::Vec<decltype(u32)>;
  bool all_within = true;
  for (std::size_t g = 0; g < groups.of(fewbit::kBlockValues / fewbit::kNumColumns); ++g)
    all_within = all_within && is_within_bfloat16(saved::Levels(scales[g]));
  if (HWY_UNLIKELY(!all_within)) return false;
  for (std::size_t w = 0; w < 8; ++w, words += fewbit::kNumColumns) {
    Words columns[kNumVectors];
    for (std::size_t v = 0; v < kNumVectors; v += 2)
      hn::LoadInterleaved2(u32, words + v * kLanes, columns[v], columns[v + 1]);
    for (std::size_t k = 0; k < 4; ++k) {
      const std::size_t row = 4 * w + k;
      const saved::Levels levels(scales[groups.of(row)]);
      const auto lowest = hn::Set(f32, levels.lowest), step = hn::Set(f32, levels.step);
      const auto byte_k = hn::LoadDup128(u32, kByteOfWord[k].lanes);
      const auto next = [&](Words column) HWY_ATTR {
        const Words codes = hn::TableLookupBytesOr0(column, byte_k);
        const Words bits =
            hn::BitCast(u32, levels.has_zeros ? levels_at<true>(f32, codes, lowest, step)
                                              : levels_at<false>(f32, codes, lowest, step));
        return round_upper_half(u32, bits);
      };
      for (std::size_t v = 0; v < kNumVectors; v += 2) {
        const Words even = next(columns[v]), odd = next(columns[v + 1]);
        const Words pair = hn::OrAnd(hn::ShiftRight<16>(even), odd, hn::Set(u32, 0xffff0000u));
        hn::StoreU(hn::BitCast(u16, pair), u16,
                   &values[row * fewbit::kNumColumns + v * kLanes].bits);
      }
    }
  }
  return true;
}

#endif  // HWY_TARGET != HWY_SCALAR

}  // namespace HWY_NAMESPACE
}  // namespace slimgrad::kernels
HWY_AFTER_NAMESPACE();

#endif  // include guard, once per target
