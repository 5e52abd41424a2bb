#include "kernels/fewbit/invertible.h"

#include <algorithm>
#include <cstddef>

#include "kernels/any_values.h"
#include "kernels/dispatch.h"
#include "kernels/half_float.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/fewbit/invertible.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/highway.h>

#include "kernels/fewbit/fewbit-inl.h"

HWY_BEFORE_NAMESPACE();
namespace slimgrad::kernels {
namespace HWY_NAMESPACE {

using Integers = hn::Vec<I32>;

// The coefficients of a cubic for every lane.
struct Cubics {
  Floats c0, c1, c2, c3;
};

// Four neighbours from table + first[lane] for every lane.
HWY_INLINE Cubics load_cubics(const float* table, Integers first) {
  const F32 f32;
#if HWY_TARGET == HWY_AVX2
  // Loaded by fours and transposed: four gathers of eight take longer.
  const hn::CappedTag<float, 4> four;
  const hn::Repartition<std::uint64_t, F32> u64;
  HWY_ALIGN std::int32_t at[8];
  hn::Store(first, I32(), at);
  Floats row[4];  // of a 4 x 4 matrix in each half
  for (std::size_t r = 0; r < 4; ++r)
    row[r] = hn::Combine(f32, hn::LoadU(four, table + at[4 + r]), hn::LoadU(four, table + at[r]));
  const auto low01 = hn::BitCast(u64, hn::InterleaveLower(f32, row[0], row[1]));
  const auto low23 = hn::BitCast(u64, hn::InterleaveLower(f32, row[2], row[3]));
  const auto high01 = hn::BitCast(u64, hn::InterleaveUpper(f32, row[0], row[1]));
  const auto high23 = hn::BitCast(u64, hn::InterleaveUpper(f32, row[2], row[3]));
  return {hn::BitCast(f32, hn::InterleaveLower(u64, low01, low23)),
          hn::BitCast(f32, hn::InterleaveUpper(u64, low01, low23)),
          hn::BitCast(f32, hn::InterleaveLower(u64, high01, high23)),
          hn::BitCast(f32, hn::InterleaveUpper(u64, high01, high23))};
#else
  return {hn::GatherIndex(f32, table, first), hn::GatherIndex(f32, table + 1, first),
          hn::GatherIndex(f32, table + 2, first), hn::GatherIndex(f32, table + 3, first)};
#endif
}

// slope_from_output() for all lanes; the lowest bit of `word` is the code.
HWY_INLINE Floats slopes(Floats y, Integers word, const InverseTable& table) {
  const F32 f32;
  const I32 i32;
  const auto is_right = hn::RebindMask(f32, hn::TestBit(word, hn::Set(i32, 1)));
  const Floats u = hn::Sub(y, hn::Set(f32, table.minimum));
  const Floats v = hn::Neg(y);
  const auto is_tail = hn::AndNot(is_right, hn::Lt(v, hn::Set(f32, table.split)));
  const Floats w = hn::IfThenElse(is_tail, v, u);
  const Floats smallest = hn::IfThenElse(is_tail, hn::Set(f32, InverseTable::kSmallestV),
                                         hn::Set(f32, InverseTable::kSmallestU));
  const auto is_large = hn::Ge(w, hn::Set(f32, InverseTable::kLargest));
  const auto is_inside = hn::AndNot(is_large, hn::Ge(w, smallest));

  const Integers bits = hn::BitCast(i32, hn::IfThenElse(is_inside, w, smallest));
  const Integers left_offset =
      hn::IfThenElse(hn::RebindMask(i32, is_tail), hn::Set(i32, InverseTable::kTailOffset),
                     hn::Set(i32, InverseTable::kNearOffset));
  const Integers offset = hn::IfThenElse(hn::RebindMask(i32, is_right),
                                         hn::Set(i32, InverseTable::kRightOffset), left_offset);
  const Integers piece = hn::Add(hn::ShiftRight<InverseTable::kPieceShift>(bits), offset);
  const Integers fraction = hn::ShiftLeft<3>(hn::And(bits, hn::Set(i32, 0xfffff)));
  const Floats f =
      hn::Sub(hn::BitCast(f32, hn::Or(fraction, hn::Set(i32, 0x3f800000))), hn::Set(f32, 1.0f));
  const Cubics c = load_cubics(table.coefficients.data(), hn::ShiftLeft<2>(piece));
  Floats slope = hn::Add(c.c2, hn::Mul(f, c.c3));
  slope = hn::Add(c.c1, hn::Mul(f, slope));
  slope = hn::Add(c.c0, hn::Mul(f, slope));
  slope = hn::IfThenElse(is_inside, slope, hn::IfThenElseZero(is_large, hn::Set(f32, 1.0f)));
  return hn::IfThenElse(hn::IsNaN(y), y, slope);
}

template <typename T>
HWY_INLINE void multiply_any(const T* gradient, const T* outputs, std::size_t num_blocks,
                             const std::uint32_t* codes, const InverseTable& table, T* result) {
  const F32 f32;
  const I32 i32;
  const hn::RebindToUnsigned<F32> u32;
  for (std::size_t block = 0; block < num_blocks; ++block) {
    for (std::size_t column = 0; column < fewbit::kNumColumns; column += hn::Lanes(f32)) {
      Integers word = hn::BitCast(i32, hn::LoadU(u32, codes + column));
      for (std::size_t row = 0; row < fewbit::kNumRows; ++row) {
        const std::size_t i = row * fewbit::kNumColumns + column;
        const Floats slope = slopes(load_floats(f32, outputs + i), word, table);
        store_floats(f32, hn::Mul(load_floats(f32, gradient + i), slope), result + i);
        word = hn::ShiftRight<1>(word);
      }
    }
    gradient += fewbit::kBlockValues;
    outputs += fewbit::kBlockValues;
    result += fewbit::kBlockValues;
    codes += fewbit::block_words(1);
  }
}

// All arrays have the type of `gradient`.
void multiply_slopes_of_any(AnyValues gradient, const void* outputs, std::size_t num_blocks,
                            const std::uint32_t* codes, const InverseTable& table, void* result) {
  std::visit(
      [&]<typename T>(const T* typed) HWY_ATTR {
        multiply_any(typed, static_cast<const T*>(outputs), num_blocks, codes, table,
                     static_cast<T*>(result));
      },
      gradient);
}

}  // namespace HWY_NAMESPACE
}  // namespace slimgrad::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace slimgrad::kernels {
namespace {

HWY_EXPORT(multiply_slopes_of_any);

}  // namespace

template <typename T>
void multiply_slopes_scalar(std::span<const T> gradient, std::span<const T> outputs,
                            std::span<const std::uint32_t> codes, const InverseTable& table,
                            std::span<T> result) noexcept {
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    const std::size_t e = i % fewbit::kBlockValues;
    const std::uint32_t* block = codes.data() + i / fewbit::kBlockValues * fewbit::block_words(1);
    const bool is_right =
        fewbit::code_at(block, e / fewbit::kNumColumns, e % fewbit::kNumColumns, 1) != 0;
    const float slope = slope_from_output(to_float(outputs[i]), is_right, table);
    result[i] = from_float<T>(to_float(gradient[i]) * slope);
  }
}

template <typename T>
void multiply_slopes(std::span<const T> gradient, std::span<const T> outputs,
                     std::span<const std::uint32_t> codes, const InverseTable& table,
                     std::span<T> result) noexcept {
  if (use_scalar()) return multiply_slopes_scalar(gradient, outputs, codes, table, result);
  const std::size_t num_whole = gradient.size() / fewbit::kBlockValues;
  HWY_DYNAMIC_DISPATCH(multiply_slopes_of_any)
  (gradient.data(), outputs.data(), num_whole, codes.data(), table, result.data());
  const std::size_t first = num_whole * fewbit::kBlockValues;
  multiply_slopes_scalar(gradient.subspan(first), outputs.subspan(first),
                         codes.subspan(num_whole * fewbit::block_words(1)), table,
                         result.subspan(first));
}

#define SLIMGRAD_INSTANTIATE(T)                                                                \
  template void multiply_slopes_scalar<T>(std::span<const T>, std::span<const T>,              \
                                          std::span<const std::uint32_t>, const InverseTable&, \
                                          std::span<T>) noexcept;                              \
  template void multiply_slopes<T>(std::span<const T>, std::span<const T>,                     \
                                   std::span<const std::uint32_t>, const InverseTable&,        \
                                   std::span<T>) noexcept;
SLIMGRAD_FOR_ELEMENT_TYPES(SLIMGRAD_INSTANTIATE)
#undef SLIMGRAD_INSTANTIATE

}  // namespace slimgrad::kernels
#endif  // HWY_ONCE
