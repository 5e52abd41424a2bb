#include "kernels/sparse/compact_rows.h"

#include <algorithm>
#include <bit>

#include <slimgrad/half.h>

#include "kernels/dispatch.h"
#include "kernels/half_float.h"
#include "kernels/sparse/pruned_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/sparse/compact_rows.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/highway.h>

#if HWY_TARGET != HWY_SCALAR
#include "kernels/sparse/survivor_bits-inl.h"
#endif

HWY_BEFORE_NAMESPACE();
namespace slimgrad::kernels {
namespace HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR && HWY_MAX_BYTES >= 32

// The survivors of some neighbours in a row, from column `column` of the block on, to the end of
// its list. Returns how many. `by_table`: whether columns have offsets of their own; not asked
// here, where it would cost every row.
template <bool by_table, typename T>
HWY_INLINE std::size_t append(const SurvivorBits& bits, std::size_t first, std::size_t count,
                              const T* x, const CompactBlock& block, std::int64_t column,
                              std::int64_t row, std::int64_t end) {
  const std::int32_t step = block.column_step;
  const std::int32_t* const table = by_table ? block.column_offsets + column : nullptr;
  const std::int32_t offset =
      block.row_offsets[row] + (by_table ? 0 : static_cast<std::int32_t>(column) * step);
  float* const values = block.values + end;
  std::int32_t* const offsets = block.offsets + end;
  return bits.pick(first, count, [=](std::size_t k, std::size_t i) HWY_ATTR {
    values[k] = to_float(x[i]);
    if constexpr (by_table)
      offsets[k] = offset + table[i];
    else
      offsets[k] = offset + static_cast<std::int32_t>(i) * step;
  });
}

// Columns [from, to) of some rows, whose bits were found from column `column` on.
struct Piece {
  std::int64_t first, last;  // rows
  std::int64_t column, from, to;
};

// A block's survivors in a piece, to the end of its list. Returns where that is then.
template <bool by_table, typename T>
HWY_INLINE std::int64_t append_rows(const SurvivorBits& bits, const MatrixRows<T>& rows,
                                    const Piece& piece, const CompactBlock& block,
                                    std::int64_t end) {
  const T* const x = rows.data + piece.first * rows.stride + piece.column;
  const auto count = static_cast<std::size_t>(piece.to - piece.from);
  for (std::int64_t row = piece.first; row < piece.last; ++row) {
    const std::int64_t start = (row - piece.first) * rows.columns + piece.from - piece.column;
    end += static_cast<std::int64_t>(append<by_table>(bits, static_cast<std::size_t>(start), count,
                                                      x + start, block,
                                                      piece.from - block.first_column, row, end));
    block.starts[row + 1] = end;
  }
  return end;
}

// The survivors of some whole rows of a width that divides 64, where there is one block: words of
// bits hold several rows. Returns where the list ends.
template <bool by_table, typename T>
HWY_INLINE std::int64_t append_narrow(const SurvivorBits& bits, const MatrixRows<T>& rows,
                                      std::int64_t first, std::int64_t last,
                                      const CompactBlock& block) {
  const auto columns = static_cast<std::size_t>(rows.columns);
  const int shift = std::countr_zero(columns);
  const std::int32_t step = block.column_step;
  const std::int32_t* const table = block.column_offsets;
  const std::int32_t* const row_offsets = block.row_offsets + first;
  float* const values = block.values + block.starts[first];
  std::int32_t* const offsets = block.offsets + block.starts[first];
  const T* const x = rows.data + first * rows.columns;
  bits.pick(0, static_cast<std::size_t>(last - first) * columns,
            [=](std::size_t k, std::size_t i) HWY_ATTR {
              const std::size_t column = i & (columns - 1);
              values[k] = to_float(x[i]);
              if constexpr (by_table)
                offsets[k] = table[column] + row_offsets[i >> shift];
              else
                offsets[k] = static_cast<std::int32_t>(column) * step + row_offsets[i >> shift];
            });
  std::int64_t end = block.starts[first];
  for (std::int64_t row = first; row < last; ++row)
    block.starts[row + 1] = end +=
        bits.count(static_cast<std::size_t>(row - first) * columns, columns);
  return end;
}

template <typename T>
HWY_INLINE void compact_matrix(const LoopTreatment& treatment, const MatrixRows<T>& rows,
                               std::span<const CompactBlock> blocks) {
  if (divides(treatment)) return compact_rows_scalar(treatment, rows, blocks);
  SurvivorBits bits(treatment);
  const Raised raised(treatment);
  constexpr auto kMost = static_cast<std::int64_t>(SurvivorBits::kMost);
  // Short rows several at a time, long ones in pieces.
  const std::int64_t rows_at_once =
      rows.has_gaps() ? 1 : std::max<std::int64_t>(1, kMost / rows.columns);
  const std::int64_t columns_at_once = std::min(kMost, rows.columns);
  const bool narrow = rows.columns <= 64 && 64 % rows.columns == 0 && !rows.has_gaps() &&
                      blocks.size() == 1 && blocks[0].num_columns == rows.columns;
  for (std::int64_t first = 0; first < rows.count; first += rows_at_once) {
    const std::int64_t last = std::min(rows.count, first + rows_at_once);
    for (std::int64_t column = 0; column < rows.columns; column += columns_at_once) {
      const std::int64_t last_column = std::min(rows.columns, column + columns_at_once);
      const std::int64_t at = first * rows.stride + column;
      bits.find(rows.data + at, static_cast<std::size_t>((last - first) * (last_column - column)),
                rows.first_index + static_cast<std::uint64_t>(at));
      for (const CompactBlock& block : blocks) {
        const std::int64_t from = std::max(block.first_column, column);
        const std::int64_t to = std::min(block.first_column + block.num_columns, last_column);
        if (from >= to) continue;
        // A row that comes in pieces goes on where the piece before has ended.
        const std::int64_t begin = block.starts[from == block.first_column ? first : last];
        const Piece piece{first, last, column, from, to};
        const bool by_table = block.column_offsets != nullptr;
        const std::int64_t end =
            narrow ? (by_table ? append_narrow<true>(bits, rows, first, last, block)
                               : append_narrow<false>(bits, rows, first, last, block))
                   : (by_table ? append_rows<true>(bits, rows, piece, block, begin)
                               : append_rows<false>(bits, rows, piece, block, begin));
        for (std::int64_t i = begin; i < end; i += 8)  // whole vectors, beyond the end
          store(raised(load(block.values + i)), block.values + i);
      }
    }
  }
}

#else

// The survivors of a row's columns [column, column + count), which are pruned, that belong to a
// block, to the end of its list.
template <typename T>
void append(const T* x, std::int64_t row, std::int64_t column, std::int64_t count,
            const CompactBlock& block) {
  const std::int64_t from = std::max(block.first_column, column);
  const std::int64_t to = std::min(block.first_column + block.num_columns, column + count);
  if (from >= to) return;
  // A row that comes in pieces goes on where the piece before has ended.
  std::int64_t end = block.starts[from == block.first_column ? row : row + 1];
  for (std::int64_t c = from; c < to; ++c) {
    const std::uint32_t bits = float_bits(x[c - column]);
    if ((bits & ~kSignMask) == 0) continue;
    block.values[end] = std::bit_cast<float>(bits);
    const std::int64_t k = c - block.first_column;
    block.offsets[end++] =
        block.row_offsets[row] + (block.column_offsets != nullptr
                                      ? block.column_offsets[k]
                                      : static_cast<std::int32_t>(k) * block.column_step);
  }
  block.starts[row + 1] = end;
}

template <typename T>
void compact_matrix(const LoopTreatment& treatment, const MatrixRows<T>& rows,
                    std::span<const CompactBlock> blocks) {
  if (!treatment.prunes()) return compact_rows_scalar(treatment, rows, blocks);
  for_pruned_rows(treatment, rows,
                  [&](const T* x, std::int64_t row, std::int64_t column, std::int64_t count) {
                    for (const CompactBlock& block : blocks) append(x, row, column, count, block);
                  });
}

#endif

void compact_rows_float32(const LoopTreatment& treatment, const MatrixRows<float>& rows,
                          std::span<const CompactBlock> blocks) {
  compact_matrix(treatment, rows, blocks);
}
void compact_rows_bfloat16(const LoopTreatment& treatment, const MatrixRows<BFloat16Bits>& rows,
                           std::span<const CompactBlock> blocks) {
  compact_matrix(treatment, rows, blocks);
}
void compact_rows_float16(const LoopTreatment& treatment, const MatrixRows<Float16Bits>& rows,
                          std::span<const CompactBlock> blocks) {
  compact_matrix(treatment, rows, blocks);
}

}  // namespace HWY_NAMESPACE
}  // namespace slimgrad::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace slimgrad::kernels {
namespace {

HWY_EXPORT(compact_rows_float32);
HWY_EXPORT(compact_rows_bfloat16);
HWY_EXPORT(compact_rows_float16);

}  // namespace

template <typename T>
void compact_rows_scalar(const LoopTreatment& treatment, const MatrixRows<T>& rows,
                         std::span<const CompactBlock> blocks) noexcept {
  const ValueRule rule(treatment);
  ApplyCounts ignored;
  for (const CompactBlock& block : blocks) {
    for (std::int64_t row = 0; row < rows.count; ++row) {
      std::int64_t count = block.starts[row];
      for (std::int64_t c = 0; c < block.num_columns; ++c) {
        const std::int64_t at = row * rows.stride + block.first_column + c;
        std::uint32_t x = float_bits(rows.data[at]);
        if (treatment.prunes())
          x = rule.apply(x, rows.first_index + static_cast<std::uint64_t>(at), ignored);
        if ((x & ~kSignMask) == 0) continue;
        block.values[count] = std::bit_cast<float>(x);
        block.offsets[count++] =
            block.row_offsets[row] + (block.column_offsets != nullptr
                                          ? block.column_offsets[c]
                                          : static_cast<std::int32_t>(c) * block.column_step);
      }
      block.starts[row + 1] = count;
    }
  }
}

template <>
void compact_rows(const LoopTreatment& treatment, const MatrixRows<float>& rows,
                  std::span<const CompactBlock> blocks) noexcept {
  if (use_scalar()) return compact_rows_scalar(treatment, rows, blocks);
  HWY_DYNAMIC_DISPATCH(compact_rows_float32)(treatment, rows, blocks);
}
template <>
void compact_rows(const LoopTreatment& treatment, const MatrixRows<BFloat16Bits>& rows,
                  std::span<const CompactBlock> blocks) noexcept {
  if (use_scalar()) return compact_rows_scalar(treatment, rows, blocks);
  HWY_DYNAMIC_DISPATCH(compact_rows_bfloat16)(treatment, rows, blocks);
}
template <>
void compact_rows(const LoopTreatment& treatment, const MatrixRows<Float16Bits>& rows,
                  std::span<const CompactBlock> blocks) noexcept {
  if (use_scalar()) return compact_rows_scalar(treatment, rows, blocks);
  HWY_DYNAMIC_DISPATCH(compact_rows_float16)(treatment, rows, blocks);
}

template void compact_rows_scalar(const LoopTreatment&, const MatrixRows<float>&,
                                  std::span<const CompactBlock>) noexcept;
template void compact_rows_scalar(const LoopTreatment&, const MatrixRows<BFloat16Bits>&,
                                  std::span<const CompactBlock>) noexcept;
template void compact_rows_scalar(const LoopTreatment&, const MatrixRows<Float16Bits>&,
                                  std::span<const CompactBlock>) noexcept;

}  // namespace slimgrad::kernels
#endif  // HWY_ONCE
