#include "kernels/fewbit/fewbit.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <limits>

#include "kernels/any_values.h"
#include "kernels/dispatch.h"
#include "kernels/half_float.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/fewbit/pack.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/highway.h>

#include "kernels/fewbit/fewbit-inl.h"

HWY_BEFORE_NAMESPACE();
namespace slimgrad::kernels {
namespace HWY_NAMESPACE {

// The code of x by binary search: after k comparisons the upper k bits of the code are known, and
// the next border is one of 2^k. What is found is the complement of the code, the number of borders
// that are not below x: NaN fails every comparison, and so has the highest code.
template <int kBits>
class Search {
 public:
  HWY_INLINE explicit Search(const float* borders) : rest_(middle(borders)), last_(last(borders)) {}

  HWY_INLINE Codes complement(Floats x) const {
    const U32 u32;
    const Codes upper = rest_.complement(x);
    const auto is_within = hn::VecFromMask(u32, hn::RebindMask(u32, hn::Le(x, last_.at(upper))));
    return hn::Sub(hn::Add(upper, upper), is_within);  // A true mask is -1.
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
  // Borders ..., 4, 2, 0, by complements: what the last comparison is with.
  static Entries last(const float* borders) {
    Entries entries = {};
    constexpr std::size_t kCount = std::size_t{1} << (kBits - 1);
    for (std::size_t i = 0; i < kCount; ++i) entries.values[i] = borders[2 * (kCount - 1 - i)];
    return entries;
  }

  Search<kBits - 1> rest_;
  Table<std::size_t{1} << (kBits - 1)> last_;
};

template <>
class Search<1> {
 public:
  HWY_INLINE explicit Search(const float* borders) : border_(hn::Set(F32(), borders[0])) {}

  HWY_INLINE Codes complement(Floats x) const {
    const U32 u32;
    const auto is_within = hn::RebindMask(u32, hn::Le(x, border_));
    return hn::IfThenElseZero(is_within, hn::Set(u32, 1));
  }

 private:
  Floats border_;
};

// Packs a block. Rows are read from the first to the last, because a prefetcher follows nothing
// else: from memory, any other order takes four times as long. A word grows from its top: each new
// code pushes the earlier ones down. Codes are complements until their words are complete.
template <int kBits, bool kEven, typename T>
HWY_INLINE void pack_block(const T* values, const Search<kBits>& search, std::uint32_t* words) {
  const F32 f32;
  const U32 u32;
  constexpr std::size_t kNumVectors = fewbit::kNumColumns / hn::MaxLanes(f32);
  constexpr std::size_t kRows = fewbit::rows_per_word(kBits);
  const auto code_at = [&](std::size_t row, std::size_t v) HWY_ATTR {
    Floats x = load_floats(f32, values + row * fewbit::kNumColumns + v * hn::MaxLanes(f32));
    if constexpr (kEven) x = hn::Abs(x);
    return search.complement(x);
  };
  Codes packed[kBits][kNumVectors];
  for (std::size_t w = 0; w < kBits; ++w) {
    for (Codes& word : packed[w]) word = hn::Zero(u32);
    for (std::size_t row = w * kRows; row < (w + 1) * kRows; ++row)
      for (std::size_t v = 0; v < kNumVectors; ++v)
        packed[w][v] =
            hn::Or(hn::ShiftRight<kBits>(packed[w][v]), hn::ShiftLeft<32 - kBits>(code_at(row, v)));
  }
  if constexpr (kBits == 3) {
    for (std::size_t v = 0; v < kNumVectors; ++v) {
      const Codes tops = hn::Or(code_at(30, v), hn::ShiftLeft<3>(code_at(31, v)));
      const Codes each[] = {tops, hn::ShiftRight<2>(tops), hn::ShiftRight<4>(tops)};
      for (std::size_t w = 0; w < 3; ++w)
        packed[w][v] = hn::Or(hn::ShiftRight<2>(packed[w][v]), hn::ShiftLeft<30>(each[w]));
    }
  }
  for (std::size_t w = 0; w < kBits; ++w)
    for (std::size_t v = 0; v < kNumVectors; ++v)
      hn::StoreU(hn::Not(packed[w][v]), u32,
                 words + w * fewbit::kNumColumns + v * hn::MaxLanes(f32));
}

template <int kBits, bool kEven, typename T>
void pack_blocks(const T* values, std::size_t num_blocks, const StepLookup& steps,
                 std::uint32_t* codes) {
  const Search<kBits> search(steps.borders);
  for (std::size_t block = 0; block < num_blocks; ++block) {
    pack_block<kBits, kEven>(values, search, codes);
    values += fewbit::kBlockValues;
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

void pack_blocks_of_any(AnyValues values, std::size_t num_blocks, const StepLookup& steps,
                        std::uint32_t* codes) {
  std::visit([&](const auto* typed) HWY_ATTR { pack_any(typed, num_blocks, steps, codes); },
             values);
}

}  // namespace HWY_NAMESPACE
}  // namespace slimgrad::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace slimgrad::kernels {
namespace {

HWY_EXPORT(pack_blocks_of_any);

constexpr float kPadding = std::numeric_limits<float>::quiet_NaN();

}  // namespace

template <typename T>
void pack_codes_scalar(std::span<const T> values, const StepLookup& steps,
                       std::span<std::uint32_t> codes) noexcept {
  std::fill(codes.begin(), codes.end(), 0u);
  const std::size_t num_coded = fewbit::num_blocks(values.size()) * fewbit::kBlockValues;
  for (std::size_t i = 0; i < num_coded; ++i) {
    const float value = i < values.size() ? to_float(values[i]) : kPadding;
    const std::size_t e = i % fewbit::kBlockValues;
    std::uint32_t* block =
        codes.data() + i / fewbit::kBlockValues * fewbit::block_words(steps.bits);
    fewbit::set_code(block, e / fewbit::kNumColumns, e % fewbit::kNumColumns, steps.bits,
                     code_of(value, steps, steps.bits));
  }
}

template <typename T>
void pack_codes(std::span<const T> values, const StepLookup& steps,
                std::span<std::uint32_t> codes) noexcept {
  if (use_scalar()) return pack_codes_scalar(values, steps, codes);
  const std::size_t num_whole = values.size() / fewbit::kBlockValues;
  HWY_DYNAMIC_DISPATCH(pack_blocks_of_any)(values.data(), num_whole, steps, codes.data());
  const std::span<const T> tail = values.subspan(num_whole * fewbit::kBlockValues);
  if (tail.empty()) return;
  T padded[fewbit::kBlockValues];
  std::fill(std::copy(tail.begin(), tail.end(), padded), std::end(padded), from_float<T>(kPadding));
  HWY_DYNAMIC_DISPATCH(pack_blocks_of_any)
  (padded, 1, steps, codes.data() + num_whole * fewbit::block_words(steps.bits));
}

#define SLIMGRAD_INSTANTIATE(T)                                             \
  template void pack_codes_scalar<T>(std::span<const T>, const StepLookup&, \
                                     std::span<std::uint32_t>) noexcept;    \
  template void pack_codes<T>(std::span<const T>, const StepLookup&,        \
                              std::span<std::uint32_t>) noexcept;
SLIMGRAD_FOR_ELEMENT_TYPES(SLIMGRAD_INSTANTIATE)
#undef SLIMGRAD_INSTANTIATE

}  // namespace slimgrad::kernels
#endif  // HWY_ONCE
