#include "kernels/compact_rows.h"

#include <algorithm>
#include <bit>
#include <vector>

#include <slimgrad/half.h>

#include "kernels/apply.h"
#include "kernels/dispatch.h"
#include "kernels/half_float.h"

#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/compact_rows.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/highway.h>

#if HWY_TARGET != HWY_SCALAR
#include "kernels/compact-inl.h"
#endif

HWY_BEFORE_NAMESPACE();
namespace slimgrad::kernels {
namespace HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR && HWY_MAX_BYTES >= 32

// Survivors of consecutive elements are moved to the front of a vector, the whole vector is
// written, and the next one overwrites what was not a survivor.
struct SurvivorList {
  float* values;
  std::int32_t* offsets;
  std::size_t count;
  Integers positions, advance;          // of eight elements, and from vector to vector
  Integers row_positions, row_advance;  // of the next row's first eight, and from row to row

  HWY_INLINE SurvivorList(const CompactBlock& block, std::int64_t first_row)
      : values(block.values),
        offsets(block.offsets),
        count(static_cast<std::size_t>(block.marks[first_row])) {
    const I32 i32;
    const auto first = static_cast<std::int32_t>(first_row * block.row_step);
    row_positions =
        hn::Add(hn::Set(i32, first), hn::Mul(hn::Iota(i32, 0), hn::Set(i32, block.column_step)));
    row_advance = hn::Set(i32, block.row_step);
    advance = hn::Set(i32, 8 * block.column_step);
    positions = row_positions;
  }

  HWY_INLINE void begin_row() {
    positions = row_positions;
    row_positions = hn::Add(row_positions, row_advance);
  }

  HWY_INLINE void append(Integers x, std::uint8_t vanished) {
    const auto order = order_of(vanished);
    hn::StoreU(as_floats(hn::TableLookupLanes(x, order)), F32(), values + count);
    hn::StoreU(hn::TableLookupLanes(positions, order), I32(), offsets + count);
    count += 8 - static_cast<std::size_t>(std::popcount(vanished));
    positions = hn::Add(positions, advance);
  }
};

// What pruning leaves.
struct PrunedChoice {
  const Pruned pruned;

  HWY_INLINE explicit PrunedChoice(const Plan& plan) : pruned(plan) {}

  HWY_INLINE void append(Integers x, const float* draws, std::uint64_t index,
                         SurvivorList& survivors) const {
    const Integers magnitude = hn::And(x, splat(~kSignMask));
    const Floats excess = pruned.excess(magnitude, draws);
    const std::uint8_t vanished = bits_of(hn::Lt(excess, hn::Set(F32(), 1.0f)));
    const std::uint8_t below = bits_of(hn::MaskFromVec(excess));  // by the sign
    if (HWY_UNLIKELY((vanished & ~below) != 0)) {
      const Integers result = pruned.decide_lanes(x, index);
      survivors.append(result, zeros_of(result));
      return;
    }
    survivors.append(pruned.survivor(x, magnitude), vanished);
  }
};

// Everything but zeros.
struct NonzeroChoice {
  HWY_INLINE void append(Integers x, const float*, std::uint64_t, SurvivorList& survivors) const {
    const Integers magnitude = hn::And(x, splat(~kSignMask));
    survivors.append(x, zeros_of(magnitude));
  }
};

template <typename Choice, typename T>
HWY_INLINE void compact_values(const Choice& choice, const T* x, std::size_t num_values,
                               const float* draws, std::uint64_t index, SurvivorList& survivors) {
  std::size_t i = 0;
  for (; i + 8 <= num_values; i += 8) choice.append(load(x + i), draws + i, index + i, survivors);
  if (i < num_values)
    choice.append(load_some(x + i, num_values - i), draws + i, index + i, survivors);
}

// Without draws, the buffer is not looked at.
template <bool prunes, typename Choice, typename T>
HWY_NOINLINE void compact_all(const Choice& choice, Draws& drawing, const MatrixRows<T>& rows,
                              std::span<const CompactBlock> blocks) {
  HWY_ALIGN float buffer[kPiece + 2 * Draws::kElements];
  const auto columns = static_cast<std::size_t>(rows.columns);
  // The last vector of a block reads beyond its end, and a draw that is not there could be
  // anything.
  const bool ragged = std::ranges::any_of(
      blocks, [](const CompactBlock& block) { return block.num_columns % 8 != 0; });
  const std::size_t beyond = ragged ? 7 : 0;
  // Short rows several at a time, long ones in pieces.
  const auto rows_at_once = static_cast<std::int64_t>(std::max<std::size_t>(1, kPiece / columns));
  for (std::int64_t first = 0; first < rows.count; first += rows_at_once) {
    const std::int64_t last = std::min(rows.count, first + rows_at_once);
    const bool all_drawn = prunes && columns <= kPiece;
    const std::uint64_t index = rows.first_index + static_cast<std::uint64_t>(first) * columns;
    const T* const data = rows.data + first * rows.columns;
    const float* draws = buffer;
    if (all_drawn)
      draws =
          draw(drawing, index, static_cast<std::size_t>(last - first) * columns + beyond, buffer);
    for (const CompactBlock& block : blocks) {
      SurvivorList survivors(block, first);
      const auto num_columns = static_cast<std::size_t>(block.num_columns);
      auto at = static_cast<std::size_t>(block.first_column);
      for (std::int64_t row = first; row < last; ++row, at += columns) {
        survivors.begin_row();
        for (std::size_t column = 0; column < num_columns; column += kPiece) {
          const std::size_t size = std::min(kPiece, num_columns - column), from = at + column;
          const float* piece_draws = all_drawn ? draws + from : draws;
          if (prunes && !all_drawn)
            piece_draws = draw(drawing, index + from, size + beyond, buffer);
          compact_values(choice, data + from, size, piece_draws, index + from, survivors);
        }
        block.marks[row + 1] = static_cast<std::int64_t>(survivors.count);
      }
    }
  }
}

template <typename T>
HWY_INLINE void compact_matrix(const Plan& plan, const MatrixRows<T>& rows,
                               std::span<const CompactBlock> blocks) {
  if (divides(plan)) return compact_rows_scalar(plan, rows, blocks);
  const PrunedChoice choice(plan);
  Draws drawing(choice.pruned.rule.random());
  if (plan.prunes)
    compact_all<true>(choice, drawing, rows, blocks);
  else
    compact_all<false>(NonzeroChoice(), drawing, rows, blocks);
}

#elif HWY_TARGET != HWY_SCALAR

template <typename T>
void compact_matrix(const Plan& plan, const MatrixRows<T>& rows,
                    std::span<const CompactBlock> blocks) {
  if (!plan.prunes) return compact_rows_scalar(plan, rows, blocks);
  static thread_local std::vector<T> buffer;
  compact_rows_scalar(Plan{}, pruned_rows(plan, rows, buffer), blocks);
}

#else

template <typename T>
void compact_matrix(const Plan& plan, const MatrixRows<T>& rows,
                    std::span<const CompactBlock> blocks) {
  compact_rows_scalar(plan, rows, blocks);
}

#endif

void compact_rows_float32(const Plan& plan, const MatrixRows<float>& rows,
                          std::span<const CompactBlock> blocks) {
  compact_matrix(plan, rows, blocks);
}
void compact_rows_bfloat16(const Plan& plan, const MatrixRows<BFloat16Bits>& rows,
                           std::span<const CompactBlock> blocks) {
  compact_matrix(plan, rows, blocks);
}

}  // namespace HWY_NAMESPACE
}  // namespace slimgrad::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace slimgrad::kernels {
namespace {

HWY_EXPORT(compact_rows_float32);
HWY_EXPORT(compact_rows_bfloat16);

}  // namespace

template <typename T>
void compact_rows_scalar(const Plan& plan, const MatrixRows<T>& rows,
                         std::span<const CompactBlock> blocks) noexcept {
  const ValueRule rule(plan);
  ApplyCounts ignored;
  for (const CompactBlock& block : blocks) {
    for (std::int64_t row = 0; row < rows.count; ++row) {
      std::int64_t count = block.marks[row];
      for (std::int64_t c = 0; c < block.num_columns; ++c) {
        const std::int64_t at = row * rows.columns + block.first_column + c;
        std::uint32_t x = float_bits(rows.data[at]);
        if (plan.prunes)
          x = rule.apply(x, rows.first_index + static_cast<std::uint64_t>(at), ignored);
        block.values[count] = std::bit_cast<float>(x);
        block.offsets[count] =
            static_cast<std::int32_t>(c * block.column_step + row * block.row_step);
        count += (x & ~kSignMask) != 0;
      }
      block.marks[row + 1] = count;
    }
  }
}

template <>
void compact_rows(const Plan& plan, const MatrixRows<float>& rows,
                  std::span<const CompactBlock> blocks) noexcept {
  if (use_scalar()) return compact_rows_scalar(plan, rows, blocks);
  HWY_DYNAMIC_DISPATCH(compact_rows_float32)(plan, rows, blocks);
}
template <>
void compact_rows(const Plan& plan, const MatrixRows<BFloat16Bits>& rows,
                  std::span<const CompactBlock> blocks) noexcept {
  if (use_scalar()) return compact_rows_scalar(plan, rows, blocks);
  HWY_DYNAMIC_DISPATCH(compact_rows_bfloat16)(plan, rows, blocks);
}

template void compact_rows_scalar(const Plan&, const MatrixRows<float>&,
                                  std::span<const CompactBlock>) noexcept;
template void compact_rows_scalar(const Plan&, const MatrixRows<BFloat16Bits>&,
                                  std::span<const CompactBlock>) noexcept;

}  // namespace slimgrad::kernels
#endif  // HWY_ONCE
