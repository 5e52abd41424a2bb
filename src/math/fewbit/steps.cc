// From a target, an interval and a weight to the optimal table: fold, mesh, search, polish, pad.
#include <slimgrad/steps.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "base/check.h"
#include "base/names.h"
#include "math/fewbit/polish.h"
#include "math/fewbit/step_mesh.h"
#include "math/fewbit/step_search.h"

namespace slimgrad {
namespace {

constexpr std::string_view kOp = "steps";
constexpr NameTable<StepWeight, 2> kWeightNames{
    {{StepWeight::kUniform, "uniform"}, {StepWeight::kNormal, "normal"}}};

// The search's grid. Cells are whole panels, so it comes out at 350 to 450 cells: with 32 pieces, a
// dozen a piece, where a border is off by at most 1/24 of a piece. For a nearly linear target that
// costs 3 (1/24)^2 = 0.5 % of the error at worst; kSlack leaves room for four times that.
constexpr std::size_t kNumCells = 300;
constexpr double kSlack = 0.02;
constexpr std::size_t kMaxCandidates = 12;

double normal_density(double x) {
  return std::numbers::inv_sqrtpi / std::numbers::sqrt2 * std::exp(-0.5 * x * x);
}

struct Problem {
  WeightedTarget target;
  std::vector<double> breaks;
  double low, high;
};

// An even derivative over |x|. A point t of the half line stands for t and -t, so that its weight
// is the sum of theirs, of those that lie in the interval: for -2 .. 5 that is w(t) + w(-t) up to 2
// and w(t) from there to 5, with a break at 2. The error over the half line is then the error over
// both sides.
Problem fold(const StepTarget& target, double low, double high,
             const std::function<double(double)>& weight) {
  const double far = std::max(std::abs(low), std::abs(high));
  const double near = std::min(std::abs(low), std::abs(high));
  const bool both_signs = low < 0 && high > 0;
  Problem problem{{target.derivative,
                   [=](double t) {
                     double sum = 0;
                     if (t >= low && t <= high) sum += weight(t);
                     if (-t >= low && -t <= high) sum += weight(-t);
                     return sum;
                   }},
                  {near},
                  both_signs ? 0 : near,
                  far};
  for (const double at : target.breaks) problem.breaks.push_back(std::abs(at));
  return problem;
}

// A target that says it is even is looked at in a few places: folding would hide a mistake.
void check_even(const StepTarget& target, double low, double high) {
  for (int i = 1; i < 16; ++i) {
    const double x = low + (high - low) * (i / 16.0 + 0.01);
    const double right = target.derivative(x), left = target.derivative(-x);
    check(!(std::abs(right - left) > 1e-9 * (std::abs(right) + std::abs(left))), kOp,
          "an even derivative, as the target says", right, " at ", x, " and ", left, " at ", -x);
  }
}

void check_arguments(const StepTarget& target, int bits, double low, double high) {
  check(bits >= 1 && bits <= 5, kOp, "1 to 5 bits", bits);
  check(std::isfinite(low) && std::isfinite(high) && low < high && std::isfinite(high - low), kOp,
        "a finite interval with low < high", low, " .. ", high);
  check(target.derivative != nullptr, kOp, "a function as derivative", "an empty std::function");
  for (const double at : target.breaks) check(std::isfinite(at), kOp, "finite breaks", at);
}

// Adds pieces without changing the function, by halving the widest one.
void pad(StepTable& table, std::size_t num_levels, double low, double high) {
  while (table.levels.size() < num_levels) {
    std::size_t widest = 0;
    double width = -1, middle = 0;
    for (std::size_t i = 0; i < table.levels.size(); ++i) {
      const double from = i == 0 ? low : table.borders[i - 1];
      const double to = i + 1 == table.levels.size() ? high : table.borders[i];
      if (to - from > width) {
        widest = i;
        width = to - from;
        middle = from + width / 2;
      }
    }
    table.borders.insert(table.borders.begin() + widest, middle);
    table.levels.insert(table.levels.begin() + widest, table.levels[widest]);
  }
}

// Spreads of runs of panels: the cells of the search.
std::vector<Moments> merge_panels(const StepMesh& mesh, const std::vector<std::size_t>& nodes) {
  std::vector<Moments> cells(nodes.size() - 1);
  for (std::size_t i = 0; i + 1 < nodes.size(); ++i)
    for (std::size_t panel = nodes[i]; panel < nodes[i + 1]; ++panel)
      cells[i] = merge(cells[i], mesh.panels[panel]);
  return cells;
}

PolishedSteps best_steps(const Problem& problem, std::size_t num_levels) {
  const StepMesh mesh = make_step_mesh(problem.target, problem.breaks, problem.low, problem.high);
  const std::vector<std::size_t> nodes = choose_nodes(mesh, kNumCells);
  const std::vector<Moments> cells = merge_panels(mesh, nodes);
  const std::size_t most = std::min(num_levels, cells.size());
  const PartitionSearch search(cells, most);

  // Fewer pieces do where the target is piecewise constant; more would split cells that have
  // nothing to gain from it, at arbitrary places.
  std::size_t num_pieces = 1;
  while (num_pieces < most && !mesh.negligible({0, 0, search.least_error(num_pieces)}, mesh.mass))
    ++num_pieces;

  PolishedSteps best;
  best.error = std::numeric_limits<double>::infinity();
  for (const Partition& partition : search.candidates(num_pieces, kSlack, kMaxCandidates)) {
    std::vector<double> borders;
    for (std::size_t i = 1; i < num_pieces; ++i)
      borders.push_back(mesh.edges[nodes[partition.cuts[i]]]);
    PolishedSteps polished = polish_steps(problem.target, mesh, std::move(borders));
    if (polished.error < best.error) best = std::move(polished);
  }
  return best;
}

}  // namespace

StepWeight parse_step_weight(std::string_view name) {
  return parse_name(kWeightNames, "parse_step_weight", "weight", name);
}

StepTable steps(const StepTarget& target, int bits, double low, double high,
                const std::function<double(double)>& weight) {
  check_arguments(target, bits, low, high);
  check(weight != nullptr, kOp, "a function as weight", "an empty std::function");
  if (target.even) check_even(target, low, high);
  const Problem problem = target.even
                              ? fold(target, low, high, weight)
                              : Problem{{target.derivative, weight}, target.breaks, low, high};
  const std::size_t num_levels = std::size_t{1} << bits;
  PolishedSteps best = best_steps(problem, num_levels);
  StepTable table{std::move(best.borders), std::move(best.levels), best.error, target.even};
  pad(table, num_levels, problem.low, problem.high);
  return table;
}

StepTable steps(const StepTarget& target, int bits, double low, double high, StepWeight weight) {
  if (weight == StepWeight::kNormal)
    return steps(target, bits, low, high, std::function<double(double)>(normal_density));
  return steps(target, bits, low, high, std::function<double(double)>([](double) { return 1.0; }));
}

StepTable steps(std::string_view activation, int bits, double low, double high, StepWeight weight) {
  StepTarget target;
  try {
    target = activation_target(activation);
  } catch (const InvalidArgument& error) {  // in the name of what was called
    const std::string text = error.what();
    throw InvalidArgument("[steps" + text.substr(text.find(']')));
  }
  return steps(target, bits, low, high, weight);
}

}  // namespace slimgrad
