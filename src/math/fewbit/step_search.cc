#include "math/fewbit/step_search.h"

#include <algorithm>
#include <cstdint>
#include <limits>

namespace slimgrad {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// best[m][i] = min over j < i of best[m-1][j] + spread of cells j .. i-1. The loops run over j
// outside and i inside, so that the inner one is an element-wise minimum, and the costs of a row
// are built once, cell by cell, and used for every m.
std::vector<std::vector<double>> best_prefixes(std::span<const Moments> cells,
                                               std::size_t max_pieces) {
  const std::size_t n = cells.size();
  std::vector<std::vector<double>> best(max_pieces + 1, std::vector<double>(n + 1, kInfinity));
  best[0][0] = 0;
  std::vector<double> cost(n + 1);
  for (std::size_t j = 0; j < n; ++j) {
    // best[m][j] is final for all m: it only depends on cuts before j.
    Moments piece;
    for (std::size_t i = j; i < n; ++i) {
      piece = merge(piece, cells[i]);
      cost[i + 1] = piece.spread;
    }
    const std::size_t most = std::min(j + 1, max_pieces);
    for (std::size_t m = 1; m <= most; ++m) {
      const double before = best[m - 1][j];
      double* row = best[m].data();
      for (std::size_t i = j + 1; i <= n; ++i) {
        const double through = before + cost[i];
        row[i] = through < row[i] ? through : row[i];
      }
    }
  }
  return best;
}

// Whether two tables are the same up to one cell at every cut, so that polishing would lead both
// to the same place.
bool nearly_equal(const Cuts& a, const Cuts& b) {
  for (std::size_t i = 0; i < a.size(); ++i)
    if ((a[i] > b[i] ? a[i] - b[i] : b[i] - a[i]) > 1) return false;
  return true;
}

}  // namespace

PartitionSearch::PartitionSearch(std::span<const Moments> cells, std::size_t max_pieces)
    : cells_(cells.begin(), cells.end()),
      reversed_(cells.rbegin(), cells.rend()),
      forward_(best_prefixes(cells_, max_pieces)),
      backward_(best_prefixes(reversed_, max_pieces)) {}

double PartitionSearch::least_error(std::size_t num_pieces) const {
  return forward_[num_pieces][cells_.size()];
}

// The cuts of the best way to make the first `end` cells into `pieces`, last one first, found again
// from the table of costs: O(end) a piece.
std::vector<std::size_t> PartitionSearch::trace(std::span<const Moments> cells,
                                                const std::vector<std::vector<double>>& best,
                                                std::size_t pieces, std::size_t end) const {
  std::vector<std::size_t> cuts;
  for (; pieces > 0; --pieces) {
    double least = kInfinity;
    std::size_t at = end - 1;
    Moments piece;
    for (std::size_t j = end; j-- > 0;) {
      piece = merge(cells[j], piece);
      const double through = best[pieces - 1][j] + piece.spread;
      if (through < least) {
        least = through;
        at = j;
      }
    }
    cuts.push_back(at);
    end = at;
  }
  return cuts;
}

Cuts PartitionSearch::cuts_through(std::size_t num_pieces, std::size_t pieces_left,
                                   std::size_t cut) const {
  const std::size_t n = cells_.size();
  Cuts cuts = trace(cells_, forward_, pieces_left, cut);
  std::reverse(cuts.begin(), cuts.end());
  cuts.push_back(cut);
  for (const std::size_t from_end : trace(reversed_, backward_, num_pieces - pieces_left, n - cut))
    cuts.push_back(n - from_end);
  return cuts;
}

std::vector<Partition> PartitionSearch::candidates(std::size_t num_pieces, double slack,
                                                   std::size_t max_candidates) const {
  struct Way {
    std::size_t pieces_left, cut;
    double error;
  };
  const std::size_t n = cells_.size();
  if (num_pieces == 1) return {{{0, n}, least_error(1)}};
  const double most = (1 + slack) * least_error(num_pieces);
  std::vector<Way> ways;
  for (std::size_t m = 1; m < num_pieces; ++m) {
    const auto error_at = [&](std::size_t cut) {
      return forward_[m][cut] + backward_[num_pieces - m][n - cut];
    };
    double before = kInfinity, here = error_at(1);
    for (std::size_t cut = 1; cut < n; ++cut) {
      const double after = cut + 1 < n ? error_at(cut + 1) : kInfinity;
      if (here <= most && here <= before && here < after) ways.push_back({m, cut, here});
      before = here;
      here = after;
    }
  }
  std::stable_sort(ways.begin(), ways.end(),
                   [](const Way& a, const Way& b) { return a.error < b.error; });

  std::vector<Partition> found;
  for (const Way& way : ways) {
    if (found.size() >= max_candidates) break;
    Cuts cuts = cuts_through(num_pieces, way.pieces_left, way.cut);
    const bool known = std::any_of(found.begin(), found.end(), [&](const Partition& other) {
      return nearly_equal(other.cuts, cuts);
    });
    if (!known) found.push_back({std::move(cuts), way.error});
  }
  return found;
}

}  // namespace slimgrad
