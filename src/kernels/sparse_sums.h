// Sums of pieces of a dense matrix, weighted by the survivors of a sparse one: the inner loop of
// both products of a sparse backward pass.
//
// A survivor is a value and an offset in `dense`. A run is a piece of the survivors with a
// displacement that is added to their offsets: a convolution uses the same survivors once for every
// tap, each time displaced. One sum takes several runs and keeps its totals in registers from the
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

struct Survivors {
  const float* values;
  const std::int32_t* offsets;
};

struct Run {
  std::int64_t begin, end;    // of the survivors
  std::int64_t displacement;  // added to their offsets
};

// (+)= sum over the runs [first_run, last_run) and their survivors.
struct Sum {
  std::int64_t out;  // where, in the matrix of the totals
  std::int64_t first_run, last_run;
};

// What a survivor adds to: `rows` times 8 * `eights` columns.
struct SumShape {
  int eights, rows;
  std::int64_t dense_stride, out_stride;  // from row to row
};

inline constexpr int kMaxEights = 12;  // of all rows
inline constexpr int kMaxSumRows = 3;

// Adds in the order of the runs and of the survivors in them (in some fixed order where several
// chains of additions hide their latency), so that the result does not depend on who calls. Vectors
// use fused multiply-adds, so the targets agree to rounding only. `accumulate`: onto what `out`
// holds. REQUIRES: eights, rows >= 1; rows <= kMaxSumRows; eights * rows <= kMaxEights.
void sparse_sums(const SumShape& shape, Survivors survivors, const float* dense,
                 std::span<const Run> runs, std::span<const Sum> sums, float* out,
                 bool accumulate) noexcept;
void sparse_sums_scalar(const SumShape& shape, Survivors survivors, const float* dense,
                        std::span<const Run> runs, std::span<const Sum> sums, float* out,
                        bool accumulate) noexcept;

}  // namespace slimgrad::kernels

#endif  // SLIMGRAD_KERNELS_SPARSE_SUMS_H_
