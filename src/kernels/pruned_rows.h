// For CPUs whose vectors are too narrow for survivors as bits: the rows of a gradient, pruned into
// a buffer, with zeros for what vanishes. To draw for one element after the other would take many
// times as long.
#ifndef SLIMGRAD_KERNELS_PRUNED_ROWS_H_
#define SLIMGRAD_KERNELS_PRUNED_ROWS_H_

#include <cstdint>
#include <vector>

#include "base/rng.h"
#include "kernels/apply.h"
#include "kernels/compact_rows.h"

namespace slimgrad::kernels {

template <typename T>
MatrixRows<T> pruned_rows(const Plan& plan, const MatrixRows<T>& rows, std::vector<T>& buffer) {
  constexpr std::uint64_t kStep = 2 * kPruneStrata * kTileElements;  // of draws
  const std::uint64_t begin = rows.first_index / kStep * kStep;
  const auto before = static_cast<std::size_t>(rows.first_index - begin);
  buffer.assign(before, T{});
  buffer.insert(buffer.end(), rows.data, rows.data + rows.count * rows.columns);
  apply(plan, buffer.data(), buffer.data(), buffer.size(), begin);
  return {buffer.data() + before, rows.count, rows.columns, rows.first_index};
}

}  // namespace slimgrad::kernels

#endif  // SLIMGRAD_KERNELS_PRUNED_ROWS_H_
