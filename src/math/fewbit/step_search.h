// Exact dynamic programming: the cheapest ways to cut a row of cells into k contiguous pieces.
#ifndef SLIMGRAD_MATH_FEWBIT_STEP_SEARCH_H_
#define SLIMGRAD_MATH_FEWBIT_STEP_SEARCH_H_

#include <cstddef>
#include <span>
#include <vector>

#include "math/fewbit/step_mesh.h"

namespace slimgrad {

// Cuts between cells: piece i is cells cuts[i] .. cuts[i+1]-1, with 0 and the number of cells as
// first and last cut.
using Cuts = std::vector<std::size_t>;

struct Partition {
  Cuts cuts;
  double error = 0;
};

// Cost tables for up to `max_pieces` pieces of a row of cells, where a piece costs the spread of
// its cells together.
//
// All O(n^2) pairs are tried for every piece count: O(n^2 k) time. The usual short cuts (divide and
// conquer, SMAWK) need the costs to satisfy the quadrangle inequality, which makes the best cut
// monotone. It holds for squared deviations of a monotone function, but not of GELU', SiLU', Mish'
// or hardswish', which fall and rise; the tests show a counterexample. So the grid is kept small
// instead and the result polished. The inner loop is a vectorised minimum: 400 cells and 32 pieces
// take about 2 ms.
class PartitionSearch {
 public:
  PartitionSearch(std::span<const Moments> cells, std::size_t max_pieces);

  // The least error of all cells in exactly `num_pieces` pieces, 1 .. min(max_pieces, cells).
  double least_error(std::size_t num_pieces) const;

  // Partitions into `num_pieces` that may lead to the optimum of the continuous problem: the best
  // one, and distinct others that are locally best and within `slack` (relative) of it, best first.
  //
  // F(m, i) + B(k - m, i), for the best ways to make m pieces left of cut i and k - m right of it,
  // is the least error of a table whose m-th border is there. A table of another kind (say, one
  // piece more left of a minimum of GELU' and one fewer right of it) is a separate local minimum
  // along i for some m. The grid moves each one's error by its own O((k/n)^2), so the ranking of
  // close ones is only known after polishing.
  std::vector<Partition> candidates(std::size_t num_pieces, double slack,
                                    std::size_t max_candidates) const;

 private:
  std::vector<std::size_t> trace(std::span<const Moments> cells,
                                 const std::vector<std::vector<double>>& best, std::size_t pieces,
                                 std::size_t end) const;
  Cuts cuts_through(std::size_t num_pieces, std::size_t pieces_left, std::size_t cut) const;

  std::vector<Moments> cells_, reversed_;
  // forward_[m][i]: the first i cells in m pieces; backward_[m][i]: the last i cells in m pieces.
  std::vector<std::vector<double>> forward_, backward_;
};

}  // namespace slimgrad

#endif  // SLIMGRAD_MATH_FEWBIT_STEP_SEARCH_H_
