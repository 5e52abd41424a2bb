#include "kernels/fewbit/fewbit.h"

#include <algorithm>
#include <cstddef>

#include "kernels/any_values.h"
#include "kernels/dispatch.h"
#include "kernels/half_float.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/fewbit/multiply.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/highway.h>

#include "kernels/fewbit/fewbit-inl.h"

HWY_BEFORE_NAMESPACE();
namespace slimgrad::kernels {
namespace HWY_NAMESPACE {

template <int kBits, typename T>
HWY_INLINE void multiply_columns(const T* gradient, const Table<(1u << kBits)>& levels,
                                 const std::uint32_t* words, T* result) {
  const F32 f32;
  const U32 u32;
  constexpr std::size_t kRows = fewbit::rows_per_word(kBits);
  const Codes mask = hn::Set(u32, (1u << kBits) - 1);
  const auto multiply_row = [&](std::size_t row, Codes code) HWY_ATTR {
    const std::size_t i = row * fewbit::kNumColumns;
    const Floats level = levels.at(hn::And(code, mask));
    const Floats product = hn::Mul(load_floats(f32, gradient + i), level);
    store_floats(f32, hn::IfThenElseZero(hn::Ne(level, hn::Zero(f32)), product), result + i);
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

void multiply_blocks_of_any(AnyValues gradient, std::size_t num_blocks, const StepLookup& steps,
                            const std::uint32_t* codes, void* result) {
  std::visit(
      [&]<typename T>(const T* typed)
          HWY_ATTR { multiply_any(typed, num_blocks, steps, codes, static_cast<T*>(result)); },
      gradient);
}

}  // namespace HWY_NAMESPACE
}  // namespace slimgrad::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace slimgrad::kernels {
namespace {

HWY_EXPORT(multiply_blocks_of_any);

}  // namespace

template <typename T>
void multiply_levels_scalar(std::span<const T> gradient, std::span<const std::uint32_t> codes,
                            const StepLookup& steps, std::span<T> result) noexcept {
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    const std::size_t e = i % fewbit::kBlockValues;
    const std::uint32_t* block =
        codes.data() + i / fewbit::kBlockValues * fewbit::block_words(steps.bits);
    const float level = steps.levels[fewbit::code_at(block, e / fewbit::kNumColumns,
                                                     e % fewbit::kNumColumns, steps.bits)];
    result[i] = from_float<T>(multiplied(to_float(gradient[i]), level));
  }
}

template <typename T>
void multiply_levels(std::span<const T> gradient, std::span<const std::uint32_t> codes,
                     const StepLookup& steps, std::span<T> result) noexcept {
  if (use_scalar()) return multiply_levels_scalar(gradient, codes, steps, result);
  const std::size_t num_whole = gradient.size() / fewbit::kBlockValues;
  HWY_DYNAMIC_DISPATCH(multiply_blocks_of_any)
  (gradient.data(), num_whole, steps, codes.data(), result.data());
  const std::size_t first = num_whole * fewbit::kBlockValues;
  const std::span<const T> tail = gradient.subspan(first);
  if (tail.empty()) return;
  T padded[fewbit::kBlockValues] = {};
  std::copy(tail.begin(), tail.end(), padded);
  HWY_DYNAMIC_DISPATCH(multiply_blocks_of_any)
  (padded, 1, steps, codes.data() + num_whole * fewbit::block_words(steps.bits), padded);
  std::copy(padded, padded + tail.size(), result.data() + first);
}

#define SLIMGRAD_INSTANTIATE(T)                                                               \
  template void multiply_levels_scalar<T>(std::span<const T>, std::span<const std::uint32_t>, \
                                          const StepLookup&, std::span<T>) noexcept;          \
  template void multiply_levels<T>(std::span<const T>, std::span<const std::uint32_t>,        \
                                   const StepLookup&, std::span<T>) noexcept;
SLIMGRAD_FOR_ELEMENT_TYPES(SLIMGRAD_INSTANTIATE)
#undef SLIMGRAD_INSTANTIATE

}  // namespace slimgrad::kernels
#endif  // HWY_ONCE
