#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <type_traits>
#include <utility>

#include "kernels/any_values.h"
#include "kernels/dispatch.h"
#include "kernels/half_float.h"
#include "kernels/saved/saved.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/saved/pack.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/highway.h>

#if HWY_TARGET != HWY_SCALAR
#include "kernels/half_float-inl.h"
#include "kernels/philox-inl.h"
#include "kernels/saved/order-inl.h"
#include "kernels/saved/scales-inl.h"
#endif

HWY_BEFORE_NAMESPACE();
namespace slimgrad::kernels {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR
// It has no 64-bit products; there the specification itself is as good.
template <typename T>
std::size_t pack_any(const T* values, std::size_t num_blocks, const saved::Format& format,
                     const RandomStream& random, std::uint64_t first_index, std::uint32_t* codes,
                     std::uint32_t* scales) {
  return pack_saved_scalar(std::span(values, num_blocks * saved::kBlockValues), format, random,
                           first_index, codes, scales);
}
#else

// Four windows of a word, by the place of their bytes: in the lanes of 16 bytes, and 0 above.
struct WindowBytes {
  alignas(16) std::uint32_t lanes[4];
  constexpr WindowBytes(std::uint32_t lower, std::uint32_t upper) : lanes() {
    for (std::uint32_t lane = 0; lane < 4; ++lane)
      lanes[lane] = (0x80800000u | upper << 8 | lower) + 0x04040404u * lane;
  }
};
inline constexpr WindowBytes kWindows[] = {{0, 1}, {1, 2}, {2, 3}, {3, 0}};

// The windows of a block, one in each word, in an order of order-inl.h.
template <class Order>
class Windows {
 public:
  HWY_INLINE explicit Windows(const RandomStream& random) : drawing_(random) {}

  HWY_INLINE void fill(std::uint64_t first_index, std::uint32_t* HWY_RESTRICT windows) {
    const U32 u32;
    for (std::size_t i = 0; i < saved::kBlockValues; i += kWindowElements) {
      HWY_ALIGN std::uint32_t words[kWords];
      drawing_.fill_words((first_index + i) / 4, words);
      for (std::size_t w = 0; w < kWords; w += 2 * hn::Lanes(u32)) {
        hn::Vec<U32> first = hn::Load(u32, words + w);
        hn::Vec<U32> second = hn::Load(u32, words + w + hn::Lanes(u32));
        Order::arrange(first, second);
        spread(first, windows + i + w);
        spread(second, windows + i + w + hn::Lanes(u32));
      }
    }
  }

 private:
  using U32 = typename Order::U32;
  static constexpr std::size_t kWords = kWindowElements / 8;
  static_assert(Drawing<1>::kElements == kWindowElements / 4);

  static HWY_INLINE void spread(hn::Vec<U32> words, std::uint32_t* HWY_RESTRICT windows) {
    const U32 u32;
    for (std::size_t s = 0; s < 4; ++s) {
      const auto window = hn::TableLookupBytesOr0(words, hn::LoadDup128(u32, kWindows[s].lanes));
      hn::Store(window, u32, windows + s * kWords);
      hn::Store(hn::Xor(window, hn::Set(u32, 0x8000u)), u32,
                windows + s * kWords + kWindowElements / 2);
    }
  }

  Drawing<1> drawing_;
};

// The integer part. REQUIRES, where it matters: 0 <= x < 2^31. Highway's would mind other numbers.
template <class U32, class V>
HWY_INLINE hn::Vec<U32> integer_part(U32 u32, V x) {
#if HWY_ARCH_X86
  (void)u32;
  if constexpr (sizeof(x.raw) == 64)
    return hn::Vec<U32>{_mm512_cvttps_epi32(x.raw)};
  else if constexpr (sizeof(x.raw) == 32)
    return hn::Vec<U32>{_mm256_cvttps_epi32(x.raw)};
  else
    return hn::Vec<U32>{_mm_cvttps_epi32(x.raw)};
#else
  return hn::BitCast(u32, hn::ConvertTo(hn::RebindToSigned<U32>(), x));
#endif
}

// saved::code_of for the row that has place k in its words: y + r is shifted to where its integer
// part belongs, and the fraction is masked away. With fewer than 8 bits the four roundings in y
// cannot lift it above the last code: (2^bits - 1) * 2^16 * 4 * 2^-24 is less than 1.
template <class Order, int kBits, bool kStochastic, std::size_t k, bool kHasZeros, typename T>
HWY_INLINE void push_row(const T* values, const saved::Scale& scale, const std::uint32_t* windows,
                         hn::Vec<typename Order::U32>* packed) {
  const typename Order::F32 f32;
  const typename Order::U32 u32;
  constexpr std::size_t kLanes = hn::MaxLanes(f32);
  constexpr std::uint32_t kFirst = kHasZeros ? saved::kOne : 0, kHighest = (1u << kBits) - 1;
  constexpr int kPlace = kBits * static_cast<int>(k);
  const auto lowest = hn::Set(f32, scale.lowest), per_step = hn::Set(f32, scale.per_step);
  hn::Vec<typename Order::F32> x[fewbit::kNumColumns / kLanes];
  Order::load(values, x);
  for (std::size_t v = 0; v < fewbit::kNumColumns / kLanes; ++v) {
    auto sum = integer_part(u32, hn::Mul(hn::Sub(x[v], lowest), per_step));
    if constexpr (kBits == 8) sum = hn::Min(sum, hn::Set(u32, kHighest * saved::kOne - kFirst));
    sum = hn::Add(
        sum, kStochastic ? hn::Load(u32, windows + v * kLanes) : hn::Set(u32, saved::kOne / 2));
    if constexpr (kHasZeros) {
      sum = hn::Add(sum, hn::Set(u32, kFirst));
      sum = hn::IfThenElseZero(hn::RebindMask(u32, hn::Gt(x[v], hn::Zero(f32))), sum);
    }
    if constexpr (kPlace < 16)
      sum = hn::ShiftRight<16 - kPlace>(sum);
    else
      sum = hn::ShiftLeft<kPlace - 16>(sum);
    packed[v] = hn::OrAnd(packed[v], sum, hn::Set(u32, kHighest << kPlace));
  }
}

template <class Order, int kBits, bool kStochastic, typename T>
HWY_INLINE void code_block(const T* values, const saved::RowGroups& groups,
                           const saved::Scale* scales, const std::uint32_t* windows,
                           std::uint32_t* words) {
  const typename Order::U32 u32;
  constexpr std::size_t kRows = fewbit::rows_per_word(kBits);
  std::size_t row = 0;
  for (std::size_t w = 0; w < kBits; ++w) {
    hn::Vec<typename Order::U32> packed[fewbit::kNumColumns / hn::MaxLanes(u32)];
    for (auto& word : packed) word = hn::Zero(u32);
    const auto push = [&]<std::size_t k>() HWY_ATTR {
      const saved::Scale& scale = scales[groups.of(row)];
      const std::size_t i = row++ * fewbit::kNumColumns;
      const std::uint32_t* const draws = windows + (kStochastic ? i : 0);
      if (scale.first != 0)
        push_row<Order, kBits, kStochastic, k, true>(values + i, scale, draws, packed);
      else
        push_row<Order, kBits, kStochastic, k, false>(values + i, scale, draws, packed);
    };
    [&]<std::size_t... k>(std::index_sequence<k...>) HWY_ATTR {
      (push.template operator()<k>(), ...);
    }
    (std::make_index_sequence<kRows>());
    Order::store(packed, words + w * fewbit::kNumColumns);
  }
}

// Some blocks are done side by side: a scale takes a hundred cycles from the first value to its
// reciprocal and a draw as many, in which the scales and draws of other blocks find their place. It
// gains a few percent at most.
inline constexpr std::size_t kSideBySide = 4;

template <int kBits, bool kStochastic, typename T>
std::size_t pack_blocks(const T* values, std::size_t num_blocks, const saved::Format& format,
                        const RandomStream& random, std::uint64_t first_index, std::uint32_t* codes,
                        std::uint32_t* scale_words) {
  using Order = std::conditional_t<std::is_same_v<T, BFloat16Bits>, EvenThenOdd, InMemoryOrder>;
  constexpr bool kConverts = std::is_same_v<T, Float16Bits>;
  using Value = std::conditional_t<kConverts, float, T>;
  Windows<Order> drawing(random);
  HWY_ALIGN std::uint32_t windows[kStochastic ? kSideBySide * saved::kBlockValues : 1];
  HWY_ALIGN float floats[kConverts ? kSideBySide * saved::kBlockValues : 1];
  saved::Scale scales[kSideBySide][saved::kMostGroups];
  bool is_good[kSideBySide];
  const saved::RowGroups groups(format.group);
  const std::size_t num_groups = saved::kBlockValues / format.group;
  std::size_t num_bad = 0;
  while (num_blocks > 0) {
    const std::size_t count = std::min(num_blocks, kSideBySide);
    const Value* from;
    if constexpr (kConverts) {
      const typename Order::F32 f32;
      for (std::size_t i = 0; i < count * saved::kBlockValues; i += hn::Lanes(f32))
        hn::Store(load_floats(f32, values + i), f32, floats + i);
      from = floats;
    } else {
      from = values;
    }
    for (std::size_t b = 0; b < count; ++b)
      is_good[b] = find_scales<kBits>(from + b * saved::kBlockValues, format.group, scales[b]);
    if constexpr (kStochastic)
      for (std::size_t i = 0; i < count * saved::kBlockValues; i += saved::kBlockValues)
        drawing.fill(first_index + i, windows + i);
    for (std::size_t b = 0; b < count; ++b) {
      const std::size_t i = b * saved::kBlockValues;
      if (HWY_LIKELY(is_good[b])) {
        code_block<Order, kBits, kStochastic>(from + i, groups, scales[b],
                                              windows + (kStochastic ? i : 0), codes);
        for (std::size_t g = 0; g < num_groups; ++g) scale_words[g] = scales[b][g].word;
      } else {
        num_bad += pack_saved_scalar(std::span(values + i, saved::kBlockValues), format, random,
                                     first_index + i, codes, scale_words);
      }
      codes += fewbit::block_words(kBits);
      scale_words += num_groups;
    }
    values += count * saved::kBlockValues;
    first_index += count * saved::kBlockValues;
    num_blocks -= count;
  }
  return num_bad;
}

template <typename T>
HWY_INLINE std::size_t pack_any(const T* values, std::size_t num_blocks,
                                const saved::Format& format, const RandomStream& random,
                                std::uint64_t first_index, std::uint32_t* codes,
                                std::uint32_t* scales) {
  const auto with = [&]<int kBits>() HWY_ATTR {
    return format.is_stochastic ? pack_blocks<kBits, true>(values, num_blocks, format, random,
                                                           first_index, codes, scales)
                                : pack_blocks<kBits, false>(values, num_blocks, format, random,
                                                            first_index, codes, scales);
  };
  switch (format.bits) {
    case 2:
      return with.template operator()<2>();
    case 4:
      return with.template operator()<4>();
    default:
      return with.template operator()<8>();
  }
}

#endif  // HWY_TARGET == HWY_SCALAR

std::size_t pack_saved_of_any(AnyValues values, std::size_t num_blocks, const saved::Format& format,
                              const RandomStream& random, std::uint64_t first_index,
                              std::uint32_t* codes, std::uint32_t* scales) {
  return std::visit(
      [&](const auto* typed) HWY_ATTR {
        return pack_any(typed, num_blocks, format, random, first_index, codes, scales);
      },
      values);
}

}  // namespace HWY_NAMESPACE
}  // namespace slimgrad::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace slimgrad::kernels {
namespace {

HWY_EXPORT(pack_saved_of_any);

template <typename T>
saved::Scale scale_of(std::span<const T> group, int bits) {
  saved::Range range(to_float(group[0]));
  for (const T value : group.subspan(1)) range.join(saved::Range(to_float(value)));
  return range.scale(bits);
}

// The last block, as long as all others.
template <typename T>
struct Padded {
  T values[saved::kBlockValues];
  explicit Padded(std::span<const T> tail) {
    std::fill(std::copy(tail.begin(), tail.end(), values), std::end(values), tail.back());
  }
};

}  // namespace

template <typename T>
std::size_t pack_saved_scalar(std::span<const T> values, const saved::Format& format,
                              const RandomStream& random, std::uint64_t first_index,
                              std::uint32_t* codes, std::uint32_t* scales) noexcept {
  const std::size_t num_values = values.size();
  std::fill(codes, codes + saved::code_words(num_values, format.bits), 0u);
  std::size_t num_bad = 0;
  saved::Scale scale;
  for (std::size_t i = 0; i < fewbit::num_blocks(num_values) * saved::kBlockValues; ++i) {
    if (i % format.group == 0 && i < num_values) {
      scale = scale_of(values.subspan(i, std::min(format.group, num_values - i)), format.bits);
      scales[i / format.group] = scale.word;
      num_bad += scale.is_bad() ? 1 : 0;
    } else if (i % format.group == 0) {  // Behind the end: groups of the last value alone.
      scale = scale_of(values.last(1), format.bits);
    }
    const float x = to_float(values[std::min(i, num_values - 1)]);
    const std::uint32_t r = format.is_stochastic ? random.window(first_index + i) : saved::kOne / 2;
    const std::size_t e = i % saved::kBlockValues;
    std::uint32_t* const block = codes + i / saved::kBlockValues * fewbit::block_words(format.bits);
    fewbit::set_code(block, e / fewbit::kNumColumns, e % fewbit::kNumColumns, format.bits,
                     saved::code_of(x, scale, r, format.bits));
  }
  return num_bad;
}

template <typename T>
std::size_t pack_saved(std::span<const T> values, const saved::Format& format,
                       const RandomStream& random, std::uint64_t first_index, std::uint32_t* codes,
                       std::uint32_t* scales) noexcept {
  if (use_scalar()) return pack_saved_scalar(values, format, random, first_index, codes, scales);
  const std::size_t num_whole = values.size() / saved::kBlockValues;
  const std::size_t first = num_whole * saved::kBlockValues;
  std::size_t num_bad = HWY_DYNAMIC_DISPATCH(pack_saved_of_any)(values.data(), num_whole, format,
                                                                random, first_index, codes, scales);
  if (first == values.size()) return num_bad;
  const Padded<T> last(values.subspan(first));
  std::uint32_t own_scales[saved::kMostGroups];
  HWY_DYNAMIC_DISPATCH(pack_saved_of_any)
  (last.values, 1, format, random, first_index + first,
   codes + saved::code_words(first, format.bits), own_scales);
  const std::size_t num_groups = saved::num_groups(values.size() - first, format.group);
  std::copy(own_scales, own_scales + num_groups, scales + first / format.group);
  return num_bad + static_cast<std::size_t>(
                       std::count(own_scales, own_scales + num_groups, saved::kBadScale));
}

#define SLIMGRAD_INSTANTIATE(T)                                                                 \
  template std::size_t pack_saved_scalar<T>(std::span<const T>, const saved::Format&,           \
                                            const RandomStream&, std::uint64_t, std::uint32_t*, \
                                            std::uint32_t*) noexcept;                           \
  template std::size_t pack_saved<T>(std::span<const T>, const saved::Format&,                  \
                                     const RandomStream&, std::uint64_t, std::uint32_t*,        \
                                     std::uint32_t*) noexcept;
SLIMGRAD_FOR_ELEMENT_TYPES(SLIMGRAD_INSTANTIATE)
#undef SLIMGRAD_INSTANTIATE

}  // namespace slimgrad::kernels
#endif  // HWY_ONCE
