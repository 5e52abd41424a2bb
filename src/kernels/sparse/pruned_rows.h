// For CPUs whose vectors are too narrow for survivors as bits: the rows of a gradient, pruned into
// a buffer, with zeros for what vanishes. To draw for one element after the other would take many
// times as long.
#ifndef SLIMGRAD_KERNELS_SPARSE_PRUNED_ROWS_H_
#define SLIMGRAD_KERNELS_SPARSE_PRUNED_ROWS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/rng.h"
#include "kernels/apply/apply.h"
#include "kernels/sparse/compact_rows.h"

namespace slimgrad::kernels {

template <typename T>
MatrixRows<T> pruned_rows(const LoopTreatment& treatment, const MatrixRows<T>& rows,
                          std::vector<T>& buffer) {
  constexpr std::uint64_t kStep = 2 * kPruneStrata * kTileElements;  // of draws
  if (rows.has_gaps()) {
    // Row by row, each from where its first draws begin.
    const auto columns = static_cast<std::size_t>(rows.columns);
    const auto size = static_cast<std::size_t>(rows.count) * columns;
    buffer.resize(size + kStep + columns);
    T* const row = buffer.data() + size;
    for (std::int64_t r = 0; r < rows.count; ++r) {
      const std::uint64_t index = rows.first_index + static_cast<std::uint64_t>(r * rows.stride);
      const std::size_t skip = index % kStep;
      std::fill(row, row + skip, T{});
      std::copy_n(rows.data + r * rows.stride, columns, row + skip);
      apply(treatment, row, row, skip + columns, index - skip);
      std::copy_n(row + skip, columns, buffer.data() + r * rows.columns);
    }
    return {buffer.data(), rows.count, rows.columns, rows.first_index};
  }
  const std::uint64_t begin = rows.first_index / kStep * kStep;
  const auto before = static_cast<std::size_t>(rows.first_index - begin);
  buffer.assign(before, T{});
  buffer.insert(buffer.end(), rows.data, rows.data + rows.count * rows.columns);
  apply(treatment, buffer.data(), buffer.data(), buffer.size(), begin);
  return {buffer.data() + before, rows.count, rows.columns, rows.first_index};
}

}  // namespace slimgrad::kernels

#endif  // SLIMGRAD_KERNELS_SPARSE_PRUNED_ROWS_H_
