#include <algorithm>
#include <cmath>
#include <cstddef>

#include "kernels/any_values.h"
#include "kernels/dispatch.h"
#include "kernels/half_float.h"
#include "kernels/kept/kept.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/kept/unpack.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/highway.h>

#include "kernels/half_float-inl.h"

#ifndef SLIMGRAD_KERNELS_KEPT_UNPACK_ONCE_
#define SLIMGRAD_KERNELS_KEPT_UNPACK_ONCE_
namespace slimgrad::kernels {

// The largest number of a 16-bit type: the uppermost level may lie above it, because its step is
// rounded up.
template <typename T>
inline constexpr float kLargest = 65504.0f;
template <>
inline constexpr float kLargest<BFloat16Bits> = 0x1.fep127f;

}  // namespace slimgrad::kernels
#endif  // SLIMGRAD_KERNELS_KEPT_UNPACK_ONCE_

HWY_BEFORE_NAMESPACE();
namespace slimgrad::kernels {
namespace HWY_NAMESPACE {

// At most as wide as a row.
using F32 = hn::CappedTag<float, fewbit::kNumColumns>;
using U32 = hn::RebindToUnsigned<F32>;
using I32 = hn::RebindToSigned<F32>;

template <int kBits, typename T>
HWY_INLINE void unpack_block(const std::uint32_t* words, const std::uint32_t* scales,
                             std::size_t rows_of_group, T* values) {
  const F32 f32;
  const U32 u32;
  const I32 i32;
  constexpr std::size_t kLanes = hn::MaxLanes(f32);
  constexpr std::size_t kNumVectors = fewbit::kNumColumns / kLanes;
  constexpr std::size_t kRows = fewbit::rows_per_word(kBits);
  const auto mask = hn::Set(u32, (1u << kBits) - 1);
  for (std::size_t w = 0; w < kBits; ++w) {
    hn::Vec<U32> word[kNumVectors];
    for (std::size_t v = 0; v < kNumVectors; ++v)
      word[v] = hn::LoadU(u32, words + w * fewbit::kNumColumns + v * kLanes);
    for (std::size_t row = w * kRows; row < (w + 1) * kRows; ++row) {
      const kept::Levels levels(scales[row / rows_of_group]);
      const auto lowest = hn::Set(f32, levels.lowest);
      const auto step = hn::Set(f32, levels.step);
      const auto pop = [&](std::size_t v, auto has_zeros) HWY_ATTR {
        auto code = hn::And(word[v], mask);
        word[v] = hn::ShiftRight<kBits>(word[v]);
        const auto is_zero = hn::RebindMask(f32, hn::Eq(code, hn::Zero(u32)));
        if constexpr (has_zeros()) code = hn::Sub(code, hn::Set(u32, 1));
        auto x = hn::MulAdd(hn::ConvertTo(f32, hn::BitCast(i32, code)), step, lowest);
        if constexpr (has_zeros()) x = hn::IfThenZeroElse(is_zero, x);
        if constexpr (sizeof(T) == 2) {
          const auto largest = hn::Set(f32, kLargest<T>);
          x = hn::IfThenElse(hn::Gt(hn::Abs(x), largest), hn::CopySign(largest, x), x);  // not NaN
        }
        store_floats(f32, x, values + row * fewbit::kNumColumns + v * kLanes);
      };
      if (levels.has_zeros) {
        for (std::size_t v = 0; v < kNumVectors; ++v) pop(v, std::true_type());
      } else {
        for (std::size_t v = 0; v < kNumVectors; ++v) pop(v, std::false_type());
      }
    }
  }
}

template <int kBits, typename T>
void unpack_blocks(const std::uint32_t* codes, const std::uint32_t* scales, std::size_t group,
                   std::size_t num_blocks, T* values) {
  for (std::size_t block = 0; block < num_blocks; ++block) {
    unpack_block<kBits>(codes, scales, group / fewbit::kNumColumns, values);
    codes += fewbit::block_words(kBits);
    scales += kept::kBlockValues / group;
    values += kept::kBlockValues;
  }
}

// `values` says the type and is written.
void unpack_kept_of_any(const std::uint32_t* codes, const std::uint32_t* scales,
                        const kept::Format& format, std::size_t num_blocks, AnyValues values) {
  std::visit(
      [&]<typename T>(const T* typed) HWY_ATTR {
        T* const to = const_cast<T*>(typed);
        switch (format.bits) {
          case 2:
            return unpack_blocks<2>(codes, scales, format.group, num_blocks, to);
          case 4:
            return unpack_blocks<4>(codes, scales, format.group, num_blocks, to);
          default:
            return unpack_blocks<8>(codes, scales, format.group, num_blocks, to);
        }
      },
      values);
}

}  // namespace HWY_NAMESPACE
}  // namespace slimgrad::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace slimgrad::kernels {
namespace {

HWY_EXPORT(unpack_kept_of_any);

template <typename T>
T in_range(float x) {
  if constexpr (sizeof(T) == 2)
    if (std::fabs(x) > kLargest<T>) x = std::copysign(kLargest<T>, x);
  return from_float<T>(x);
}

}  // namespace

template <typename T>
void unpack_kept_scalar(const std::uint32_t* codes, const std::uint32_t* scales,
                        const kept::Format& format, std::span<T> values) noexcept {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint32_t* const block =
        codes + i / kept::kBlockValues * fewbit::block_words(format.bits);
    const std::uint32_t code = kept::code_at(block, i % kept::kBlockValues, format.bits);
    values[i] = in_range<T>(kept::Levels(scales[i / format.group]).at(code));
  }
}

template <typename T>
void unpack_kept(const std::uint32_t* codes, const std::uint32_t* scales,
                 const kept::Format& format, std::span<T> values) noexcept {
  if (use_scalar()) return unpack_kept_scalar(codes, scales, format, values);
  const std::size_t num_whole = values.size() / kept::kBlockValues;
  HWY_DYNAMIC_DISPATCH(unpack_kept_of_any)
  (codes, scales, format, num_whole, static_cast<const T*>(values.data()));
  const std::size_t first = num_whole * kept::kBlockValues;
  unpack_kept_scalar(codes + kept::code_words(first, format.bits), scales + first / format.group,
                     format, values.subspan(first));
}

#define SLIMGRAD_INSTANTIATE(T)                                                                 \
  template void unpack_kept_scalar<T>(const std::uint32_t*, const std::uint32_t*,               \
                                      const kept::Format&, std::span<T>) noexcept;              \
  template void unpack_kept<T>(const std::uint32_t*, const std::uint32_t*, const kept::Format&, \
                               std::span<T>) noexcept;
SLIMGRAD_FOR_ELEMENT_TYPES(SLIMGRAD_INSTANTIATE)
#undef SLIMGRAD_INSTANTIATE

}  // namespace slimgrad::kernels
#endif  // HWY_ONCE
