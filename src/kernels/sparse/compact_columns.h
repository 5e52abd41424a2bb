// The columns of a gradient, pruned and reduced to their survivors in one pass over its rows: each
// column has a list that grows. Lists grow where there is room for all rows and are packed at the
// end: the products read them several times and would otherwise find few survivors on many pages.
//
// Cost: some two vector instructions an element, and six cycles a survivor.
#ifndef SLIMGRAD_KERNELS_SPARSE_COMPACT_COLUMNS_H_
#define SLIMGRAD_KERNELS_SPARSE_COMPACT_COLUMNS_H_

#include "kernels/sparse/compact_rows.h"

namespace slimgrad::kernels {

inline constexpr std::int64_t kMostColumns = 256;  // at a time

// Where the lists grow, each with room for all rows. What is in it does not matter.
struct ListRoom {
  std::int64_t stride;    // from list to list: at least the number of rows and kCompactSlack
  float* values;          // num_columns * stride
  std::int32_t* offsets;  // the same
  std::int64_t* ends;     // num_columns
};

// The survivors of columns first_column + c, c < num_columns, in the order of the rows. That of row
// r has the offset row_offsets[r], and column_offsets[c] more if there are such.
struct ColumnLists {
  std::int64_t first_column, num_columns;  // num_columns: at most kMostColumns
  const std::int32_t* row_offsets;
  const std::int32_t* column_offsets = nullptr;
  bool many;  // whether many are expected to survive: what is written is the same, but not the cost
  ListRoom room;
  // One list behind the other. Room for all elements and kCompactSlack.
  float* values;
  std::int32_t* offsets;
  // starts[0] is given; starts[c + 1] becomes starts[c] and the survivors of column c.
  std::int64_t* starts;
};

// As compact_rows(): prunes by the treatment, or drops zeros if it does not prune.
template <typename T>
void compact_columns(const LoopTreatment& treatment, const MatrixRows<T>& rows,
                     const ColumnLists& lists) noexcept;
template <typename T>
void compact_columns_scalar(const LoopTreatment& treatment, const MatrixRows<T>& rows,
                            const ColumnLists& lists) noexcept;

}  // namespace slimgrad::kernels

#endif  // SLIMGRAD_KERNELS_SPARSE_COMPACT_COLUMNS_H_
