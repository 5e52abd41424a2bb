// Sums of pieces of a dense matrix, weighted by the survivors of a sparse one: the inner loops of
// both products of a sparse backward pass.
//
// A survivor is a value and an offset in `dense`. A sum keeps its totals in registers from the
// first survivor to the last: some eights of neighbouring columns, of one or several rows.
//
// Cost: a survivor is one broadcast and, for each eight, one load that is the operand of a
// multiply-add. So what bounds it is where `dense` lies: in the first-level cache two multiply-adds
// a cycle, in the second less than one. A sum also loads and stores its totals, and its end is a
// branch that no predictor guesses; some ten survivors outweigh that.
#ifndef SLIMGRAD_KERNELS_SPARSE_SUMS_H_
#define SLIMGRAD_KERNELS_SPARSE_SUMS_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace slimgrad::kernels {

struct SurvivorArrays {
  const float* values;
  const std::int32_t* offsets;
};

// What a survivor adds to: `rows` times 8 * `eights` columns.
struct SumShape {
  int eights, rows;
  std::int64_t dense_stride, out_stride;  // from row to row
};

inline constexpr int kMaxEights = 12;  // of all rows
inline constexpr int kMaxSumRows = 3;

// Lists of survivors, one behind the other: list l is [starts[l], starts[l + 1]).
struct SurvivorLists {
  SurvivorArrays survivors;
  const std::int64_t* starts;
  std::int64_t count;
};

// A sum for every list, that of list l at l * out_step. One after the other, so that they may
// overlap, and each in the order of its survivors (in some fixed order where several chains of
// additions hide their latency), so that the result does not depend on the caller. Vectors use
// fused multiply-adds, so the targets agree to rounding only. `accumulate`: onto what `out` holds;
// then an empty list costs next to nothing. REQUIRES: eights, rows >= 1; rows <= kMaxSumRows;
// eights * rows <= kMaxEights.
void sum_lists(const SumShape& shape, const SurvivorLists& lists, const float* dense, float* out,
               std::int64_t out_step, bool accumulate) noexcept;
void sum_lists_scalar(const SumShape& shape, const SurvivorLists& lists, const float* dense,
                      float* out, std::int64_t out_step, bool accumulate) noexcept;

// Sums over lists that overlap: the lists lie in some lines, and a reach is a stretch of lists that
// is the same in every line. Its displacement and the line's are added to the survivors' offsets.
struct ListLine {
  const std::int64_t* starts;
  std::int64_t displacement;
};
struct Reach {
  std::int64_t first, last;  // lists [first, last)
  std::int64_t displacement;
};

// A sum of one row for every reach, over all lines; that of reach r at r * out_step. Otherwise as
// sum_lists().
void sum_reaches(int eights, const SurvivorArrays& survivors, std::span<const ListLine> lines,
                 std::span<const Reach> reaches, const float* dense, float* out,
                 std::int64_t out_step, bool accumulate) noexcept;
void sum_reaches_scalar(int eights, const SurvivorArrays& survivors,
                        std::span<const ListLine> lines, std::span<const Reach> reaches,
                        const float* dense, float* out, std::int64_t out_step,
                        bool accumulate) noexcept;

}  // namespace slimgrad::kernels

#endif  // SLIMGRAD_KERNELS_SPARSE_SUMS_H_
