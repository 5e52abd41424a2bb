#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <type_traits>

#include "kernels/any_values.h"
#include "kernels/dispatch.h"
#include "kernels/half_float.h"
#include "kernels/kept/kept.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/kept/pack.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/highway.h>

#if HWY_TARGET != HWY_SCALAR
#include "kernels/apply/philox-inl.h"
#include "kernels/half_float-inl.h"
#endif

HWY_BEFORE_NAMESPACE();
namespace slimgrad::kernels {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR
// It has no 64-bit products; there the specification itself is as good.
template <typename T>
std::size_t pack_any(const T* values, std::size_t num_blocks, const kept::Format& format,
                     const RandomStream& random, std::uint64_t first_index, std::uint32_t* codes,
                     std::uint32_t* scales) {
  return pack_kept_scalar(std::span(values, num_blocks * kept::kBlockValues), format, random,
                          first_index, codes, scales);
}
#else

// At most as wide as a row.
using F32 = hn::CappedTag<float, fewbit::kNumColumns>;
using U32 = hn::RebindToUnsigned<F32>;
using I32 = hn::RebindToSigned<F32>;
using Floats = hn::Vec<F32>;
using Words = hn::Vec<U32>;

// The windows of a block, one in each word.
class Windows {
 public:
  HWY_INLINE explicit Windows(const RandomStream& random) : drawing_(random) {}

  HWY_INLINE void fill(std::uint64_t first_index, std::uint32_t* HWY_RESTRICT windows) {
    const U32 u32;
    constexpr std::size_t kWords = kWindowElements / 8, kPair = kWindowElements / 2;
    for (std::size_t i = 0; i < kept::kBlockValues; i += kWindowElements) {
      HWY_ALIGN std::uint32_t words[kWords];
      drawing_.fill_words((first_index + i) / 4, words);
      const Words mask = hn::Set(u32, 0xffffu), turn = hn::Set(u32, 0x8000u);
      for (std::size_t w = 0; w < kWords; w += hn::Lanes(u32)) {
        const Words word = hn::Load(u32, words + w);
        const Words last = hn::Or(hn::ShiftRight<24>(word), hn::ShiftLeft<8>(word));
        const Words window[] = {hn::And(word, mask), hn::And(hn::ShiftRight<8>(word), mask),
                                hn::ShiftRight<16>(word), hn::And(last, mask)};
        for (std::size_t s = 0; s < 4; ++s) {
          std::uint32_t* const to = windows + i + s * kWords + w;
          hn::Store(window[s], u32, to);
          hn::Store(hn::Xor(window[s], turn), u32, to + kPair);
        }
      }
    }
  }

 private:
  static_assert(Drawing<1>::kElements == kWindowElements / 4);
  Drawing<1> drawing_;
};

// The scales of a block's groups; false if one of them is bad.
template <int kBits>
HWY_INLINE bool find_scales(const float* values, std::size_t group, kept::Scale* scales) {
  const F32 f32;
  const U32 u32;
  bool all_good = true;
  for (std::size_t first = 0; first < kept::kBlockValues; first += group, ++scales) {
    const float* const end = values + first + group;
    Floats least = hn::LoadU(f32, end - hn::Lanes(f32)), most = least, odd = hn::Sub(least, least);
    for (const float* from = values + first; from + hn::Lanes(f32) < end; from += hn::Lanes(f32)) {
      const Floats x = hn::LoadU(f32, from);
      least = hn::Min(least, x);
      most = hn::Max(most, x);
      odd = hn::Or(odd, hn::Sub(x, x));  // 0, or NaN for what is not finite
    }
    if (HWY_UNLIKELY(!hn::AllTrue(u32, hn::Eq(hn::BitCast(u32, odd), hn::Zero(u32))))) {
      *scales = {};
      all_good = false;
      continue;
    }
    const float minimum = hn::GetLane(hn::MinOfLanes(f32, least));
    const float maximum = hn::GetLane(hn::MaxOfLanes(f32, most));
    float least_positive = 0.0f;
    if (minimum == 0.0f && maximum > 0.0f) {
      Floats positive = hn::Set(f32, maximum);
      for (const float* from = values + first; from < end; from += hn::Lanes(f32)) {
        const Floats x = hn::LoadU(f32, from);
        positive = hn::Min(positive, hn::IfThenElse(hn::Gt(x, hn::Zero(f32)), x, positive));
      }
      least_positive = hn::GetLane(hn::MinOfLanes(f32, positive));
    }
    *scales = kept::make_scale(minimum, maximum, least_positive, kBits);
    all_good = all_good && !scales->is_bad();
  }
  return all_good;
}

// Rows from the first to the last, and a word grows from its top, as few-bit codes do.
template <int kBits, bool kStochastic>
HWY_INLINE void code_block(const float* values, std::size_t rows_of_group,
                           const kept::Scale* scales, const std::uint32_t* windows,
                           std::uint32_t* words) {
  const F32 f32;
  const U32 u32;
  const I32 i32;
  constexpr std::size_t kLanes = hn::MaxLanes(f32);
  constexpr std::size_t kNumVectors = fewbit::kNumColumns / kLanes;
  constexpr std::size_t kRows = fewbit::rows_per_word(kBits);
  const Words highest = hn::Set(u32, (1u << kBits) - 1);
  const Words half = hn::Set(u32, kept::kOne / 2);
  for (std::size_t w = 0; w < kBits; ++w) {
    Words packed[kNumVectors];
    for (Words& word : packed) word = hn::Zero(u32);
    for (std::size_t row = w * kRows; row < (w + 1) * kRows; ++row) {
      const kept::Scale& scale = scales[row / rows_of_group];
      const Floats lowest = hn::Set(f32, scale.lowest);
      const Floats per_step = hn::Set(f32, scale.per_step);
      const auto push = [&](std::size_t v, auto has_zeros) HWY_ATTR {
        const std::size_t i = row * fewbit::kNumColumns + v * kLanes;
        const Floats x = hn::LoadU(f32, values + i);
        const Words y = hn::BitCast(u32, hn::ConvertTo(i32, hn::Mul(hn::Sub(x, lowest), per_step)));
        const Words r = kStochastic ? hn::Load(u32, windows + i) : half;
        Words sum = hn::Add(y, r);
        if constexpr (has_zeros()) sum = hn::Add(sum, hn::Set(u32, kept::kOne));
        Words code = hn::Min(hn::ShiftRight<16>(sum), highest);
        if constexpr (has_zeros())
          code = hn::IfThenElseZero(hn::RebindMask(u32, hn::Gt(x, hn::Zero(f32))), code);
        packed[v] = hn::Or(hn::ShiftRight<kBits>(packed[v]), hn::ShiftLeft<32 - kBits>(code));
      };
      if (scale.first != 0) {
        for (std::size_t v = 0; v < kNumVectors; ++v) push(v, std::true_type());
      } else {
        for (std::size_t v = 0; v < kNumVectors; ++v) push(v, std::false_type());
      }
    }
    for (std::size_t v = 0; v < kNumVectors; ++v)
      hn::StoreU(packed[v], u32, words + w * fewbit::kNumColumns + v * kLanes);
  }
}

template <int kBits, bool kStochastic, typename T>
std::size_t pack_blocks(const T* values, std::size_t num_blocks, const kept::Format& format,
                        const RandomStream& random, std::uint64_t first_index, std::uint32_t* codes,
                        std::uint32_t* scale_words) {
  [[maybe_unused]] const F32 f32;
  Windows drawing(random);
  HWY_ALIGN std::uint32_t windows[kept::kBlockValues];
  HWY_ALIGN float floats[kept::kBlockValues];
  kept::Scale scales[kept::kMostGroups];
  const std::size_t num_groups = kept::kBlockValues / format.group;
  std::size_t num_bad = 0;
  for (std::size_t block = 0; block < num_blocks; ++block) {
    const float* from = floats;
    if constexpr (std::is_same_v<T, float>) {
      from = values;
    } else {
      for (std::size_t i = 0; i < kept::kBlockValues; i += hn::Lanes(f32))
        hn::Store(load_floats(f32, values + i), f32, floats + i);
    }
    if (HWY_LIKELY(find_scales<kBits>(from, format.group, scales))) {
      if constexpr (kStochastic) drawing.fill(first_index, windows);
      code_block<kBits, kStochastic>(from, format.group / fewbit::kNumColumns, scales, windows,
                                     codes);
      for (std::size_t g = 0; g < num_groups; ++g) scale_words[g] = scales[g].word;
    } else {
      num_bad += pack_kept_scalar(std::span(values, kept::kBlockValues), format, random,
                                  first_index, codes, scale_words);
    }
    values += kept::kBlockValues;
    first_index += kept::kBlockValues;
    codes += fewbit::block_words(kBits);
    scale_words += num_groups;
  }
  return num_bad;
}

template <typename T>
HWY_INLINE std::size_t pack_any(const T* values, std::size_t num_blocks, const kept::Format& format,
                                const RandomStream& random, std::uint64_t first_index,
                                std::uint32_t* codes, std::uint32_t* scales) {
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

std::size_t pack_kept_of_any(AnyValues values, std::size_t num_blocks, const kept::Format& format,
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

HWY_EXPORT(pack_kept_of_any);

template <typename T>
kept::Scale scale_of(std::span<const T> group, int bits) {
  float minimum = to_float(group[0]), maximum = minimum, least_positive = 0.0f;
  for (const T value : group) {
    const float x = to_float(value);
    if (!std::isfinite(x)) return {};
    minimum = std::min(minimum, x);
    maximum = std::max(maximum, x);
    if (x > 0.0f && !(least_positive > 0.0f && least_positive <= x)) least_positive = x;
  }
  return kept::make_scale(minimum, maximum, least_positive, bits);
}

// The last block, as long as all others.
template <typename T>
struct Padded {
  T values[kept::kBlockValues];
  explicit Padded(std::span<const T> tail) {
    std::fill(std::copy(tail.begin(), tail.end(), values), std::end(values), tail.back());
  }
};

}  // namespace

template <typename T>
std::size_t pack_kept_scalar(std::span<const T> values, const kept::Format& format,
                             const RandomStream& random, std::uint64_t first_index,
                             std::uint32_t* codes, std::uint32_t* scales) noexcept {
  const std::size_t num_values = values.size();
  std::fill(codes, codes + kept::code_words(num_values, format.bits), 0u);
  std::size_t num_bad = 0;
  kept::Scale scale;
  for (std::size_t i = 0; i < fewbit::num_blocks(num_values) * kept::kBlockValues; ++i) {
    if (i % format.group == 0 && i < num_values) {
      scale = scale_of(values.subspan(i, std::min(format.group, num_values - i)), format.bits);
      scales[i / format.group] = scale.word;
      num_bad += scale.is_bad() ? 1 : 0;
    } else if (i % format.group == 0) {  // Behind the end: groups of the last value alone.
      scale = scale_of(values.last(1), format.bits);
    }
    const float x = to_float(values[std::min(i, num_values - 1)]);
    const std::uint32_t r = format.is_stochastic ? random.window(first_index + i) : kept::kOne / 2;
    const std::size_t e = i % kept::kBlockValues, row = e / fewbit::kNumColumns;
    const std::size_t rows = fewbit::rows_per_word(format.bits);
    std::uint32_t* const block = codes + i / kept::kBlockValues * fewbit::block_words(format.bits);
    block[row / rows * fewbit::kNumColumns + e % fewbit::kNumColumns] |=
        kept::code_of(x, scale, r, format.bits)
        << static_cast<std::size_t>(format.bits) * (row % rows);
  }
  return num_bad;
}

template <typename T>
std::size_t pack_kept(std::span<const T> values, const kept::Format& format,
                      const RandomStream& random, std::uint64_t first_index, std::uint32_t* codes,
                      std::uint32_t* scales) noexcept {
  if (use_scalar()) return pack_kept_scalar(values, format, random, first_index, codes, scales);
  const std::size_t num_whole = values.size() / kept::kBlockValues;
  const std::size_t first = num_whole * kept::kBlockValues;
  std::size_t num_bad = HWY_DYNAMIC_DISPATCH(pack_kept_of_any)(values.data(), num_whole, format,
                                                               random, first_index, codes, scales);
  if (first == values.size()) return num_bad;
  const Padded<T> last(values.subspan(first));
  std::uint32_t own_scales[kept::kMostGroups];
  HWY_DYNAMIC_DISPATCH(pack_kept_of_any)
  (last.values, 1, format, random, first_index + first,
   codes + kept::code_words(first, format.bits), own_scales);
  const std::size_t num_groups = kept::num_groups(values.size() - first, format.group);
  std::copy(own_scales, own_scales + num_groups, scales + first / format.group);
  return num_bad +
         static_cast<std::size_t>(std::count(own_scales, own_scales + num_groups, kept::kBadScale));
}

#define SLIMGRAD_INSTANTIATE(T)                                                                   \
  template std::size_t pack_kept_scalar<T>(std::span<const T>, const kept::Format&,               \
                                           const RandomStream&, std::uint64_t, std::uint32_t*,    \
                                           std::uint32_t*) noexcept;                              \
  template std::size_t pack_kept<T>(std::span<const T>, const kept::Format&, const RandomStream&, \
                                    std::uint64_t, std::uint32_t*, std::uint32_t*) noexcept;
SLIMGRAD_FOR_ELEMENT_TYPES(SLIMGRAD_INSTANTIATE)
#undef SLIMGRAD_INSTANTIATE

}  // namespace slimgrad::kernels
#endif  // HWY_ONCE
