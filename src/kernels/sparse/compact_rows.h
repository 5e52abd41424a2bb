// The rows of a gradient, pruned and reduced to their survivors in one pass: the decisions do not
// leave the first-level cache, and pruned values are never written.
//
// Cost: some two vector instructions an element, and three cycles a survivor.
#ifndef SLIMGRAD_KERNELS_SPARSE_COMPACT_ROWS_H_
#define SLIMGRAD_KERNELS_SPARSE_COMPACT_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/apply/loop_treatment.h"

namespace slimgrad::kernels {

// Rows of a matrix, or the same stretch of each of them.
template <typename T>
struct MatrixRows {
  const T* data;
  std::int64_t count, columns;
  std::uint64_t first_index;      // of data[0] in the matrix: it decides the draws
  std::int64_t stride = columns;  // from row to row, of data and of indices

  bool has_gaps() const { return stride != columns; }
};

// Room that must be left behind the last survivor: several are written at a time.
inline constexpr std::size_t kCompactSlack = 8;

// The survivors of some columns of every row, in the order of the rows. That of column
// first_column + c in row r has the offset c * column_step + row_offsets[r], or
// column_offsets[c] + row_offsets[r] where columns have offsets of their own.
struct CompactBlock {
  std::int64_t first_column, num_columns;
  std::int32_t column_step = 0;
  const std::int32_t* column_offsets = nullptr;
  const std::int32_t* row_offsets;
  // Room for all elements and kCompactSlack.
  float* values;
  std::int32_t* offsets;
  // starts[0] is given; starts[r + 1] becomes starts[r] and the survivors of row r.
  std::int64_t* starts;
};

// Prunes by the treatment, or not at all if it does not prune: then what is not zero survives (NaN
// is not). The treatment's grid is not looked at. `T` is float, BFloat16Bits or Float16Bits.
template <typename T>
void compact_rows(const LoopTreatment& treatment, const MatrixRows<T>& rows,
                  std::span<const CompactBlock> blocks) noexcept;
template <typename T>
void compact_rows_scalar(const LoopTreatment& treatment, const MatrixRows<T>& rows,
                         std::span<const CompactBlock> blocks) noexcept;

}  // namespace slimgrad::kernels

#endif  // SLIMGRAD_KERNELS_SPARSE_COMPACT_ROWS_H_
