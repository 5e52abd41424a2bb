// A gradient on its way into a compressed form: pruned piece by piece in a buffer that stays in the
// first-level cache, so that the pruned gradient is never written to memory.
#ifndef SLIMGRAD_CODECS_PRUNED_ROWS_H_
#define SLIMGRAD_CODECS_PRUNED_ROWS_H_

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include <slimgrad/half.h>
#include <slimgrad/quantize.h>

#include "codecs/plan.h"
#include "kernels/apply.h"
#include "kernels/half_float.h"

namespace slimgrad {

// How a gradient is pruned for one product.
struct PruneDraw {
  double threshold = 0;  // 0: as it is
  std::uint64_t seed = 0;
};

// Calls visit(row, values) for the rows [first_row, first_row + num_rows) of the matrix `gradient`,
// pruned. What is drawn for an element depends on its index in the whole matrix alone.
template <typename T, typename Visit>
void for_pruned_rows(const T* gradient, std::int64_t columns, std::int64_t first_row,
                     std::int64_t num_rows, const PruneDraw& draw, const Visit& visit) {
  constexpr std::int64_t kBufferElements = 4096;
  kernels::Plan plan;
  plan.threshold = make_threshold("prune", draw.threshold, kValueType<T>);
  plan.prunes = plan.threshold > 0;
  plan.seed = draw.seed;
  if constexpr (std::is_same_v<T, float>) {
    if (!plan.prunes) {
      for (std::int64_t row = first_row; row < first_row + num_rows; ++row)
        visit(row, gradient + row * columns);
      return;
    }
  }
  static thread_local std::vector<T> pruned;
  static thread_local std::vector<float> floats;
  const std::int64_t rows_at_once = std::max<std::int64_t>(1, kBufferElements / columns);
  constexpr auto kUnit = static_cast<std::int64_t>(kPieceElements);
  for (std::int64_t row = first_row; row < first_row + num_rows; row += rows_at_once) {
    const std::int64_t rows = std::min(rows_at_once, first_row + num_rows - row);
    // Draws come in units; the few elements before ours are drawn for and forgotten.
    const std::int64_t begin = row * columns / kUnit * kUnit, end = (row + rows) * columns;
    const auto count = static_cast<std::size_t>(end - begin);
    if (pruned.size() < count) pruned.resize(count);
    kernels::apply(plan, gradient + begin, pruned.data(), count, static_cast<std::uint64_t>(begin));
    const float* values;
    if constexpr (std::is_same_v<T, float>) {
      values = pruned.data();
    } else {
      if (floats.size() < count) floats.resize(count);
      for (std::size_t i = 0; i < count; ++i)
        floats[i] = std::bit_cast<float>(kernels::float_bits(pruned[i]));
      values = floats.data();
    }
    for (std::int64_t r = 0; r < rows; ++r)
      visit(row + r, values + (row * columns - begin) + r * columns);
  }
}

}  // namespace slimgrad

#endif  // SLIMGRAD_CODECS_PRUNED_ROWS_H_
