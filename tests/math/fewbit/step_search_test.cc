#include "math/fewbit/step_search.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include <slimgrad/steps.h>

namespace slimgrad {
namespace {

// The cost of cells i .. j-1 as one piece, from its definition, with plain sums in long double.
double piece_cost(std::span<const Moments> cells, std::size_t i, std::size_t j) {
  long double mass = 0, first = 0, cost = 0;
  for (std::size_t c = i; c < j; ++c) {
    mass += cells[c].mass;
    first += static_cast<long double>(cells[c].mass) * cells[c].mean;
  }
  const long double mean = mass > 0 ? first / mass : 0;
  for (std::size_t c = i; c < j; ++c)
    cost += cells[c].spread + cells[c].mass * (cells[c].mean - mean) * (cells[c].mean - mean);
  return static_cast<double>(cost);
}

// Every way to cut, by recursion.
double brute_force(std::span<const Moments> cells, std::size_t pieces) {
  if (pieces == 1) return piece_cost(cells, 0, cells.size());
  double best = std::numeric_limits<double>::infinity();
  for (std::size_t cut = pieces - 1; cut < cells.size(); ++cut)
    best = std::min(
        best, brute_force(cells.first(cut), pieces - 1) + piece_cost(cells, cut, cells.size()));
  return best;
}

double cost_of(std::span<const Moments> cells, const Cuts& cuts) {
  double cost = 0;
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) cost += piece_cost(cells, cuts[i], cuts[i + 1]);
  return cost;
}

std::vector<Moments> even_cells(std::string_view activation, double low, double high, int num) {
  const WeightedTarget target{activation_target(activation).derivative,
                              [](double x) { return std::exp(-0.1 * x * x); }};
  std::vector<Moments> cells;
  for (int i = 0; i < num; ++i)
    cells.push_back(
        target.integrate(low + (high - low) * i / num, low + (high - low) * (i + 1) / num));
  return cells;
}

TEST(PartitionSearch, EqualsEveryWayToCutForEveryActivation) {
  for (const std::string_view name : activation_names()) {
    const std::vector<Moments> cells = even_cells(name, -5, 5, 14);
    const PartitionSearch search(cells, 8);
    for (std::size_t pieces = 1; pieces <= 8; ++pieces) {
      const double expected = brute_force(cells, pieces);
      EXPECT_NEAR(search.least_error(pieces), expected, 1e-13) << name << ' ' << pieces;
      const auto found = search.candidates(pieces, 0.1, 5);
      ASSERT_FALSE(found.empty());
      for (const Partition& partition : found) {
        ASSERT_EQ(partition.cuts.size(), pieces + 1);
        EXPECT_EQ(partition.cuts.front(), 0u);
        EXPECT_EQ(partition.cuts.back(), cells.size());
        EXPECT_NEAR(cost_of(cells, partition.cuts), partition.error, 1e-13) << name;
        EXPECT_LE(partition.error, 1.1 * expected + 1e-13);
      }
      EXPECT_NEAR(found.front().error, expected, 1e-13);
    }
  }
}

TEST(PartitionSearch, EqualsEveryWayToCutForNoise) {
  std::mt19937 generator(5);
  std::uniform_real_distribution<double> uniform(0, 1);
  for (int round = 0; round < 50; ++round) {
    std::vector<Moments> cells(11);
    // A quarter of the cells has no mass at all.
    for (Moments& cell : cells) {
      cell = {std::max(0.0, uniform(generator) - 0.25), uniform(generator), 0};
      cell.spread = 0.01 * cell.mass;
    }
    const PartitionSearch search(cells, 6);
    for (std::size_t pieces = 1; pieces <= 6; ++pieces)
      EXPECT_NEAR(search.least_error(pieces), brute_force(cells, pieces), 1e-13);
  }
}

// Why the search tries all pairs: divide and conquer takes the last cut to be monotone in the end,
// which the quadrangle inequality c(a,c) + c(b,d) <= c(a,d) + c(b,c) for a <= b <= c <= d would
// give. It holds for softplus' (monotone) and fails for GELU' (not).
TEST(PartitionSearch, QuadrangleInequalityFailsWithoutMonotony) {
  const auto violations = [](std::string_view name) {
    const std::vector<Moments> cells = even_cells(name, -5, 5, 30);
    std::vector<std::vector<double>> cost(31, std::vector<double>(31));
    for (std::size_t i = 0; i < 31; ++i)
      for (std::size_t j = i; j < 31; ++j) cost[i][j] = piece_cost(cells, i, j);
    int count = 0;
    for (std::size_t a = 0; a < 31; ++a)
      for (std::size_t b = a; b < 31; ++b)
        for (std::size_t c = b; c < 31; ++c)
          for (std::size_t d = c; d < 31; ++d)
            count += cost[a][c] + cost[b][d] > cost[a][d] + cost[b][c] + 1e-9;
    return count;
  };
  EXPECT_EQ(violations("softplus"), 0);
  EXPECT_EQ(violations("elu"), 0);
  EXPECT_GT(violations("gelu"), 0);
  EXPECT_GT(violations("silu"), 0);
  EXPECT_GT(violations("hardswish"), 0);
}

TEST(PartitionSearch, OffersBothMirrorImages) {
  // A symmetric hill in two pieces: cut it left or right of the top.
  std::vector<Moments> cells;
  for (int i = 0; i < 40; ++i) {
    const double x = (i - 19.5) / 8;
    cells.push_back({1, std::exp(-x * x), 0});
  }
  const auto found = PartitionSearch(cells, 2).candidates(2, 0.01, 10);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].cuts[1] + found[1].cuts[1], 40u);
  EXPECT_NEAR(found[0].error, found[1].error, 1e-12);
}

TEST(PartitionSearch, AsManyPiecesAsCells) {
  const std::vector<Moments> cells = even_cells("gelu", -5, 5, 8);
  const PartitionSearch search(cells, 8);
  double spreads = 0;
  for (const Moments& cell : cells) spreads += cell.spread;
  EXPECT_NEAR(search.least_error(8), spreads, 1e-15);
  EXPECT_EQ(search.candidates(8, 0.01, 3).front().cuts, (Cuts{0, 1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(search.candidates(1, 0.01, 3).front().cuts, (Cuts{0, 8}));
}

}  // namespace
}  // namespace slimgrad
