// For CPUs whose vectors are too narrow for survivors as bits: the rows of a gradient, pruned piece
// by piece, with zeros for what vanishes. To draw for one element after the other would take many
// times as long.
#ifndef SLIMGRAD_KERNELS_SPARSE_PRUNED_ROWS_H_
#define SLIMGRAD_KERNELS_SPARSE_PRUNED_ROWS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/rng.h"
#include "kernels/apply/apply.h"
#include "kernels/sparse/compact_rows.h"

namespace slimgrad::kernels {

// Calls visit(values, row, column, count) for stretches of rows that together are all of them, in
// order: a row may come in several.
template <typename T, typename Visit>
void for_pruned_rows(const LoopTreatment& treatment, const MatrixRows<T>& rows,
                     const Visit& visit) noexcept {
  constexpr std::int64_t kStep = 2 * kPruneStrata * kTileElements;  // of draws
  constexpr std::int64_t kMost = 16 * kStep;
  T piece[kMost];
  // Rows without gaps are pruned as one.
  const std::int64_t length = rows.has_gaps() ? rows.columns : rows.count * rows.columns;
  const std::int64_t step = rows.has_gaps() ? rows.stride : length;
  const std::int64_t end = rows.has_gaps() ? rows.count * step : length;
  std::int64_t row = 0, column = 0;
  for (std::int64_t start = 0; start < end; start += step)
    for (std::int64_t at = start; at < start + length;) {
      // From where the first draws begin.
      const std::uint64_t index = rows.first_index + static_cast<std::uint64_t>(at);
      const auto skip = static_cast<std::int64_t>(index % kStep);
      const std::int64_t count = std::min(start + length - at, kMost - skip);
      std::fill_n(piece, skip, T{});
      std::copy_n(rows.data + at, count, piece + skip);
      apply(treatment, piece, piece, static_cast<std::size_t>(skip + count),
            index - static_cast<std::uint64_t>(skip));
      at += count;
      for (std::int64_t i = skip; i < skip + count;) {
        const std::int64_t stretch = std::min(rows.columns - column, skip + count - i);
        visit(piece + i, row, column, stretch);
        i += stretch;
        column += stretch;
        if (column < rows.columns) continue;
        column = 0;
        ++row;
      }
    }
}

}  // namespace slimgrad::kernels

#endif  // SLIMGRAD_KERNELS_SPARSE_PRUNED_ROWS_H_
