// Sums of rows of a dense matrix, weighted by the survivors of a sparse one: the inner loop of both
// products of a sparse backward pass.
//
// A survivor is a value and the offset of a row in `dense`. A run is a piece of the survivors with
// a displacement that is added to their offsets: a convolution uses the same survivors once for
// every tap, each time displaced. One sum takes several runs and keeps its 8 * `eights` totals in
// registers from the first survivor to the last.
//
// Cost: a survivor is one broadcast and, for each eight, one load that is the operand of a
// multiply-add. So what bounds it is where `dense` lies: in the first-level cache two multiply-adds
// a cycle, in the second about one. Callers cut `dense` into tiles that stay in the second level.
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

// out[0 .. 8 * eights) (+)= sum over the runs [first_run, last_run) and their survivors.
struct Sum {
  float* out;
  std::int64_t first_run, last_run;
};

inline constexpr int kMaxEights = 12;

// Adds in the order of the runs and of the survivors in them (in some fixed order where several
// chains of additions hide their latency), so that the result does not depend on who calls. Vectors
// use fused multiply-adds, so the targets agree to rounding only. `accumulate`: onto what `out`
// holds. REQUIRES: 1 <= eights <= kMaxEights.
void sparse_sums(int eights, Survivors survivors, const float* dense, std::span<const Run> runs,
                 std::span<const Sum> sums, bool accumulate) noexcept;
void sparse_sums_scalar(int eights, Survivors survivors, const float* dense,
                        std::span<const Run> runs, std::span<const Sum> sums,
                        bool accumulate) noexcept;

}  // namespace slimgrad::kernels

#endif  // SLIMGRAD_KERNELS_SPARSE_SUMS_H_
