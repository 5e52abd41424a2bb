#include "kernels/fewbit.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <limits>

#include "kernels/dispatch.h"
#include "kernels/half_values.h"

// Tables are arrays of vectors, which vectors without a fixed size cannot be in.
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/fewbit.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/highway.h>

#include "kernels/half_values-inl.h"

HWY_BEFORE_NAMESPACE();
namespace slimgrad::kernels {
namespace HWY_NAMESPACE {

// At most as wide as a row.
using F32 = hn::CappedTag<float, fewbit::kNumColumns>;
using U32 = hn::RebindToUnsigned<F32>;
using I32 = hn::RebindToSigned<F32>;
using Floats = hn::Vec<F32>;
using Codes = hn::Vec<U32>;

// kNumEntries floats to be looked up by a vector of indices: one shuffle if they fit into a vector,
// otherwise both halves and a choice by the highest bit of the index.
template <std::size_t kNumEntries>
class Table {
  static constexpr std::size_t kNumLanes = hn::MaxLanes(F32());
  static constexpr std::size_t kNumVectors = std::max<std::size_t>(1, kNumEntries / kNumLanes);

 public:
  HWY_INLINE explicit Table(const float* entries) {
    float padded[std::max(kNumEntries, kNumLanes)] = {};
    std::copy(entries, entries + kNumEntries, padded);
    for (std::size_t i = 0; i < kNumVectors; ++i)
      vectors_[i] = hn::LoadU(F32(), padded + i * kNumLanes);
  }

  // REQUIRES: index < kNumEntries in every lane.
  HWY_INLINE Floats at(Codes index) const { return find<kNumEntries, 0>(index); }

 private:
  template <std::size_t kCount, std::size_t kFirst>
  HWY_INLINE Floats find(Codes index) const {
    const U32 u32;
    if constexpr (kCount == 1) {
      return vectors_[kFirst];
    } else if constexpr (kCount <= kNumLanes) {
      return hn::TableLookupLanes(vectors_[kFirst], hn::IndicesFromVec(F32(), index));
    } else {
      constexpr std::size_t kHalf = kCount / 2;
      const Codes high_bit = hn::Set(u32, static_cast<std::uint32_t>(kHalf));
      const Codes rest = hn::AndNot(high_bit, index);
      const auto is_high = hn::RebindMask(F32(), hn::TestBit(index, high_bit));
      return hn::IfThenElse(is_high, find<kHalf, kFirst + kHalf / kNumLanes>(rest),
                            find<kHalf, kFirst>(rest));
    }
  }

  Floats vectors_[kNumVectors];
};

// The code of x by binary search: after k comparisons the upper k bits of the code are known, and
// the next border is one of 2^k.
template <int kBits>
class Search {
 public:
  HWY_INLINE explicit Search(const float* borders) : rest_(middle(borders)), last_(last(borders)) {}

  HWY_INLINE Codes code(Floats x) const {
    const U32 u32;
    const Codes upper = rest_.code(x);
    const auto is_above = hn::VecFromMask(u32, hn::RebindMask(u32, hn::Gt(x, last_.at(upper))));
    return hn::Sub(hn::Add(upper, upper), is_above);  // A true mask is -1.
  }

 private:
  struct Entries {
    float values[16];
    operator const float*() const { return values; }
  };
  // Borders 1, 3, 5, ...: the table of the search with one bit less.
  static Entries middle(const float* borders) {
    Entries entries = {};
    for (std::size_t i = 0; i + 1 < std::size_t{1} << (kBits - 1); ++i)
      entries.values[i] = borders[2 * i + 1];
    return entries;
  }
  // Borders 0, 2, 4, ...: what the last comparison is with.
  static Entries last(const float* borders) {
    Entries entries = {};
    for (std::size_t i = 0; i < std::size_t{1} << (kBits - 1); ++i)
      entries.values[i] = borders[2 * i];
    return entries;
  }

  Search<kBits - 1> rest_;
  Table<std::size_t{1} << (kBits - 1)> last_;
};

template <>
class Search<1> {
 public:
  HWY_INLINE explicit Search(const float* borders) : border_(hn::Set(F32(), borders[0])) {}

  HWY_INLINE Codes code(Floats x) const {
    const U32 u32;
    const auto is_above = hn::RebindMask(u32, hn::Gt(x, border_));
    return hn::IfThenElseZero(is_above, hn::Set(u32, 1));
  }

 private:
  Floats border_;
};

// Packs the 32 rows of one vector of columns. Rows are visited from the last to the first of a
// word, so that each shift is by the width of one code.
template <int kBits, bool kEven, typename T>
HWY_INLINE void pack_columns(const T* values, const Search<kBits>& search, std::uint32_t* words) {
  const F32 f32;
  const U32 u32;
  constexpr std::size_t kRows = fewbit::rows_per_word(kBits);
  const auto code_of_row = [&](std::size_t row) HWY_ATTR {
    Floats x = load_floats(f32, values + row * fewbit::kNumColumns);
    if constexpr (kEven) x = hn::Abs(x);
    return search.code(x);
  };
  Codes tops = hn::Zero(u32);
  if constexpr (kBits == 3) tops = hn::Or(hn::ShiftLeft<3>(code_of_row(31)), code_of_row(30));
  for (std::size_t w = 0; w < kBits; ++w) {
    Codes word = hn::Zero(u32);
    if constexpr (kBits == 3) {
      word = hn::And(tops, hn::Set(u32, 3));
      tops = hn::ShiftRight<2>(tops);
    }
    for (std::size_t row = (w + 1) * kRows; row-- > w * kRows;)
      word = hn::Or(hn::ShiftLeft<kBits>(word), code_of_row(row));
    hn::StoreU(word, u32, words + w * fewbit::kNumColumns);
  }
}

template <int kBits, typename T>
HWY_INLINE void multiply_columns(const T* gradient, const Table<(1u << kBits)>& levels,
                                 const std::uint32_t* words, T* result) {
  const F32 f32;
  const U32 u32;
  constexpr std::size_t kRows = fewbit::rows_per_word(kBits);
  const Codes mask = hn::Set(u32, (1u << kBits) - 1);
  const auto multiply_row = [&](std::size_t row, Codes code) HWY_ATTR {
    const std::size_t i = row * fewbit::kNumColumns;
    const Floats product = hn::Mul(load_floats(f32, gradient + i), levels.at(hn::And(code, mask)));
    store_floats(f32, product, result + i);
  };
  Codes tops = hn::Zero(u32);
  for (std::size_t w = 0; w < kBits; ++w) {
    Codes word = hn::LoadU(u32, words + w * fewbit::kNumColumns);
    for (std::size_t row = w * kRows; row < (w + 1) * kRows; ++row) {
      multiply_row(row, word);
      if constexpr (kBits < 4 || kRows > 1) word = hn::ShiftRight<kBits>(word);
    }
    // After ten shifts by three, what is left of the word is its top.
    if constexpr (kBits == 3) tops = hn::Or(tops, hn::ShiftLeftSame(word, static_cast<int>(2 * w)));
  }
  if constexpr (kBits == 3) {
    multiply_row(30, tops);
    multiply_row(31, hn::ShiftRight<3>(tops));
  }
}

template <int kBits, bool kEven, typename T>
void pack_blocks(const T* values, std::size_t num_blocks, const StepLookup& steps,
                 std::uint32_t* codes) {
  const Search<kBits> search(steps.borders);
  for (std::size_t block = 0; block < num_blocks; ++block) {
    for (std::size_t column = 0; column < fewbit::kNumColumns; column += hn::Lanes(F32()))
      pack_columns<kBits, kEven>(values + column, search, codes + column);
    values += fewbit::kBlockValues;
    codes += fewbit::block_words(kBits);
  }
}

template <int kBits, typename T>
void multiply_blocks(const T* gradient, std::size_t num_blocks, const StepLookup& steps,
                     const std::uint32_t* codes, T* result) {
  const Table<(1u << kBits)> levels(steps.levels);
  for (std::size_t block = 0; block < num_blocks; ++block) {
    for (std::size_t column = 0; column < fewbit::kNumColumns; column += hn::Lanes(F32()))
      multiply_columns<kBits>(gradient + column, levels, codes + column, result + column);
    gradient += fewbit::kBlockValues;
    result += fewbit::kBlockValues;
    codes += fewbit::block_words(kBits);
  }
}

template <typename T>
HWY_INLINE void pack_any(const T* values, std::size_t num_blocks, const StepLookup& steps,
                         std::uint32_t* codes) {
  switch (2 * steps.bits + (steps.is_even ? 1 : 0)) {
    case 2:
      return pack_blocks<1, false>(values, num_blocks, steps, codes);
    case 3:
      return pack_blocks<1, true>(values, num_blocks, steps, codes);
    case 4:
      return pack_blocks<2, false>(values, num_blocks, steps, codes);
    case 5:
      return pack_blocks<2, true>(values, num_blocks, steps, codes);
    case 6:
      return pack_blocks<3, false>(values, num_blocks, steps, codes);
    case 7:
      return pack_blocks<3, true>(values, num_blocks, steps, codes);
    case 8:
      return pack_blocks<4, false>(values, num_blocks, steps, codes);
    default:
      return pack_blocks<4, true>(values, num_blocks, steps, codes);
  }
}

template <typename T>
HWY_INLINE void multiply_any(const T* gradient, std::size_t num_blocks, const StepLookup& steps,
                             const std::uint32_t* codes, T* result) {
  switch (steps.bits) {
    case 1:
      return multiply_blocks<1>(gradient, num_blocks, steps, codes, result);
    case 2:
      return multiply_blocks<2>(gradient, num_blocks, steps, codes, result);
    case 3:
      return multiply_blocks<3>(gradient, num_blocks, steps, codes, result);
    default:
      return multiply_blocks<4>(gradient, num_blocks, steps, codes, result);
  }
}

// Dispatch tables hold plain functions: one a type.
void pack_float32(const float* values, std::size_t num_blocks, const StepLookup& steps,
                  std::uint32_t* codes) {
  pack_any(values, num_blocks, steps, codes);
}
void pack_bfloat16(const BFloat16Bits* values, std::size_t num_blocks, const StepLookup& steps,
                   std::uint32_t* codes) {
  pack_any(values, num_blocks, steps, codes);
}
void pack_float16(const Float16Bits* values, std::size_t num_blocks, const StepLookup& steps,
                  std::uint32_t* codes) {
  pack_any(values, num_blocks, steps, codes);
}
void multiply_float32(const float* gradient, std::size_t num_blocks, const StepLookup& steps,
                      const std::uint32_t* codes, float* result) {
  multiply_any(gradient, num_blocks, steps, codes, result);
}
void multiply_bfloat16(const BFloat16Bits* gradient, std::size_t num_blocks,
                       const StepLookup& steps, const std::uint32_t* codes, BFloat16Bits* result) {
  multiply_any(gradient, num_blocks, steps, codes, result);
}
void multiply_float16(const Float16Bits* gradient, std::size_t num_blocks, const StepLookup& steps,
                      const std::uint32_t* codes, Float16Bits* result) {
  multiply_any(gradient, num_blocks, steps, codes, result);
}

}  // namespace HWY_NAMESPACE
}  // namespace slimgrad::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace slimgrad::kernels {
namespace {

HWY_EXPORT(pack_float32);
HWY_EXPORT(pack_bfloat16);
HWY_EXPORT(pack_float16);
HWY_EXPORT(multiply_float32);
HWY_EXPORT(multiply_bfloat16);
HWY_EXPORT(multiply_float16);

void pack_whole(const float* values, std::size_t num_blocks, const StepLookup& steps,
                std::uint32_t* codes) {
  HWY_DYNAMIC_DISPATCH(pack_float32)(values, num_blocks, steps, codes);
}
void pack_whole(const BFloat16Bits* values, std::size_t num_blocks, const StepLookup& steps,
                std::uint32_t* codes) {
  HWY_DYNAMIC_DISPATCH(pack_bfloat16)(values, num_blocks, steps, codes);
}
void pack_whole(const Float16Bits* values, std::size_t num_blocks, const StepLookup& steps,
                std::uint32_t* codes) {
  HWY_DYNAMIC_DISPATCH(pack_float16)(values, num_blocks, steps, codes);
}
void multiply_whole(const float* gradient, std::size_t num_blocks, const StepLookup& steps,
                    const std::uint32_t* codes, float* result) {
  HWY_DYNAMIC_DISPATCH(multiply_float32)(gradient, num_blocks, steps, codes, result);
}
void multiply_whole(const BFloat16Bits* gradient, std::size_t num_blocks, const StepLookup& steps,
                    const std::uint32_t* codes, BFloat16Bits* result) {
  HWY_DYNAMIC_DISPATCH(multiply_bfloat16)(gradient, num_blocks, steps, codes, result);
}
void multiply_whole(const Float16Bits* gradient, std::size_t num_blocks, const StepLookup& steps,
                    const std::uint32_t* codes, Float16Bits* result) {
  HWY_DYNAMIC_DISPATCH(multiply_float16)(gradient, num_blocks, steps, codes, result);
}

std::uint32_t code_of(float x, const StepLookup& steps) {
  if (steps.is_even) x = std::fabs(x);
  std::uint32_t code = 0;
  for (int i = 0; i + 1 < 1 << steps.bits; ++i) code += x > steps.borders[i];
  return code;
}

// Puts a code where fewbit::code_at finds it. REQUIRES: its bits are zero so far.
void set_code(std::uint32_t* block, std::size_t row, std::size_t column, int bits,
              std::uint32_t code) {
  std::uint32_t* words = block + column;
  if (bits == 3 && row >= 30) {
    const std::uint32_t tops = code << 3 * (row - 30);
    for (int w = 0; w < 3; ++w) words[w * fewbit::kNumColumns] |= (tops >> 2 * w & 3u) << 30;
    return;
  }
  const std::size_t rows = fewbit::rows_per_word(bits);
  words[row / rows * fewbit::kNumColumns] |= code << static_cast<std::size_t>(bits) * (row % rows);
}

}  // namespace

template <typename T>
void pack_codes_scalar(std::span<const T> values, const StepLookup& steps,
                       std::span<std::uint32_t> codes) noexcept {
  std::fill(codes.begin(), codes.end(), 0u);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::size_t e = i % fewbit::kBlockValues;
    std::uint32_t* block =
        codes.data() + i / fewbit::kBlockValues * fewbit::block_words(steps.bits);
    set_code(block, e / fewbit::kNumColumns, e % fewbit::kNumColumns, steps.bits,
             code_of(to_float(values[i]), steps));
  }
}

template <typename T>
void multiply_levels_scalar(std::span<const T> gradient, std::span<const std::uint32_t> codes,
                            const StepLookup& steps, std::span<T> result) noexcept {
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    const std::size_t e = i % fewbit::kBlockValues;
    const std::uint32_t* block =
        codes.data() + i / fewbit::kBlockValues * fewbit::block_words(steps.bits);
    const float level = steps.levels[fewbit::code_at(block, e / fewbit::kNumColumns,
                                                     e % fewbit::kNumColumns, steps.bits)];
    result[i] = from_float<T>(to_float(gradient[i]) * level);
  }
}

template <typename T>
void pack_codes(std::span<const T> values, const StepLookup& steps,
                std::span<std::uint32_t> codes) noexcept {
  if (use_scalar()) return pack_codes_scalar(values, steps, codes);
  const std::size_t num_whole = values.size() / fewbit::kBlockValues;
  pack_whole(values.data(), num_whole, steps, codes.data());
  const std::span<const T> tail = values.subspan(num_whole * fewbit::kBlockValues);
  if (tail.empty()) return;
  T padded[fewbit::kBlockValues];
  std::fill(std::copy(tail.begin(), tail.end(), padded), std::end(padded),
            from_float<T>(std::numeric_limits<float>::quiet_NaN()));  // has the code zero
  pack_whole(padded, 1, steps, codes.data() + num_whole * fewbit::block_words(steps.bits));
}

template <typename T>
void multiply_levels(std::span<const T> gradient, std::span<const std::uint32_t> codes,
                     const StepLookup& steps, std::span<T> result) noexcept {
  if (use_scalar()) return multiply_levels_scalar(gradient, codes, steps, result);
  const std::size_t num_whole = gradient.size() / fewbit::kBlockValues;
  multiply_whole(gradient.data(), num_whole, steps, codes.data(), result.data());
  const std::size_t first = num_whole * fewbit::kBlockValues;
  const std::span<const T> tail = gradient.subspan(first);
  if (tail.empty()) return;
  T padded[fewbit::kBlockValues] = {};
  std::copy(tail.begin(), tail.end(), padded);
  multiply_whole(padded, 1, steps, codes.data() + num_whole * fewbit::block_words(steps.bits),
                 padded);
  std::copy(padded, padded + tail.size(), result.data() + first);
}

#define SLIMGRAD_FOR_TYPE(T)                                                                  \
  template void pack_codes_scalar<T>(std::span<const T>, const StepLookup&,                   \
                                     std::span<std::uint32_t>) noexcept;                      \
  template void pack_codes<T>(std::span<const T>, const StepLookup&,                          \
                              std::span<std::uint32_t>) noexcept;                             \
  template void multiply_levels_scalar<T>(std::span<const T>, std::span<const std::uint32_t>, \
                                          const StepLookup&, std::span<T>) noexcept;          \
  template void multiply_levels<T>(std::span<const T>, std::span<const std::uint32_t>,        \
                                   const StepLookup&, std::span<T>) noexcept;
SLIMGRAD_FOR_TYPE(float)
SLIMGRAD_FOR_TYPE(BFloat16Bits)
SLIMGRAD_FOR_TYPE(Float16Bits)
#undef SLIMGRAD_FOR_TYPE

}  // namespace slimgrad::kernels
#endif  // HWY_ONCE
