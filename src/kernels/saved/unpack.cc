#include <algorithm>
#include <cstddef>
#include <type_traits>

#include "formats/value_types.h"
#include "kernels/any_values.h"
#include "kernels/dispatch.h"
#include "kernels/half_float.h"
#include "kernels/saved/saved.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/saved/unpack.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/highway.h>

#include "kernels/saved/levels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace slimgrad::kernels {
namespace HWY_NAMESPACE {

template <int kBits, typename T>
HWY_INLINE void unpack_block(const std::uint32_t* words, const std::uint32_t* scales,
                             const saved::RowGroups& groups, T* values) {
  const hn::CappedTag<float, fewbit::kNumColumns> f32;  // At most as wide as a row.
  const hn::RebindToUnsigned<decltype(f32)> u32;
  constexpr std::size_t kLanes = hn::MaxLanes(f32);
  constexpr std::size_t kNumVectors = fewbit::kNumColumns / kLanes;
  constexpr std::size_t kRows = fewbit::rows_per_word(kBits);
  const auto mask = hn::Set(u32, (1u << kBits) - 1);
  for (std::size_t w = 0; w < kBits; ++w) {
    hn::Vec<decltype(u32)> word[kNumVectors];
    for (std::size_t v = 0; v < kNumVectors; ++v)
      word[v] = hn::LoadU(u32, words + w * fewbit::kNumColumns + v * kLanes);
    for (std::size_t row = w * kRows; row < (w + 1) * kRows; ++row) {
      const saved::Levels levels(scales[groups.of(row)]);
      const auto lowest = hn::Set(f32, levels.lowest);
      const auto step = hn::Set(f32, levels.step);
      for (std::size_t v = 0; v < kNumVectors; ++v) {
        const auto codes = hn::And(word[v], mask);
        word[v] = hn::ShiftRight<kBits>(word[v]);
        T* const to = values + row * fewbit::kNumColumns + v * kLanes;
        if (levels.has_zeros)
          store_levels<true>(f32, codes, lowest, step, to);
        else
          store_levels<false>(f32, codes, lowest, step, to);
      }
    }
  }
}

template <int kBits, typename T>
void unpack_blocks(const std::uint32_t* codes, const std::uint32_t* scales, std::size_t group,
                   std::size_t num_blocks, T* values) {
  const saved::RowGroups groups(group);
  for (std::size_t block = 0; block < num_blocks; ++block) {
    const auto is_done = [&]() HWY_ATTR {  // in a way that is faster
#if HWY_TARGET != HWY_SCALAR
      if constexpr (sizeof(T) == 2 && kBits < 8) {
        if (groups.rows() >= kTableRows) {
          unpack_block_by_table<kBits>(codes, scales, groups, values);
          return true;
        }
      } else if constexpr (std::is_same_v<T, BFloat16Bits>) {
        return unpack_block_of_bytes(codes, scales, groups, values);
      }
#endif
      return false;
    };
    if (!is_done()) unpack_block<kBits>(codes, scales, groups, values);
    codes += fewbit::block_words(kBits);
    scales += groups.of(saved::kBlockValues / fewbit::kNumColumns);
    values += saved::kBlockValues;
  }
}

// `values` says the type and is written.
void unpack_saved_of_any(const std::uint32_t* codes, const std::uint32_t* scales,
                         const saved::Format& format, std::size_t num_blocks, AnyValues values) {
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

HWY_EXPORT(unpack_saved_of_any);

}  // namespace

template <typename T>
void unpack_saved_scalar(const std::uint32_t* codes, const std::uint32_t* scales,
                         const saved::Format& format, std::span<T> values) noexcept {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint32_t* const block =
        codes + i / saved::kBlockValues * fewbit::block_words(format.bits);
    const std::uint32_t code = saved::code_at(block, i % saved::kBlockValues, format.bits);
    values[i] = from_float_in_range<T>(saved::Levels(scales[i / format.group]).at(code));
  }
}

template <typename T>
void unpack_saved(const std::uint32_t* codes, const std::uint32_t* scales,
                  const saved::Format& format, std::span<T> values) noexcept {
  if (use_scalar()) return unpack_saved_scalar(codes, scales, format, values);
  const std::size_t num_whole = values.size() / saved::kBlockValues;
  HWY_DYNAMIC_DISPATCH(unpack_saved_of_any)
  (codes, scales, format, num_whole, static_cast<const T*>(values.data()));
  const std::size_t first = num_whole * saved::kBlockValues;
  unpack_saved_scalar(codes + saved::code_words(first, format.bits), scales + first / format.group,
                      format, values.subspan(first));
}

#define SLIMGRAD_INSTANTIATE(T)                                                                   \
  template void unpack_saved_scalar<T>(const std::uint32_t*, const std::uint32_t*,                \
                                       const saved::Format&, std::span<T>) noexcept;              \
  template void unpack_saved<T>(const std::uint32_t*, const std::uint32_t*, const saved::Format&, \
                                std::span<T>) noexcept;
SLIMGRAD_FOR_ELEMENT_TYPES(SLIMGRAD_INSTANTIATE)
#undef SLIMGRAD_INSTANTIATE

}  // namespace slimgrad::kernels
#endif  // HWY_ONCE
