#include "math/fewbit/polish.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace slimgrad {
namespace {

constexpr int kMaxIterations = 60;
constexpr int kMaxHalvings = 30;

// One border as Newton's method sees it.
struct BorderView {
  double residual = 0;       // r_j; 0 if it stays on a jump
  double value = 0;          // g there, from the side to which it would move
  double slope = 0;          // g' there
  double weight = 0;         // w there
  bool stays = false;        // on a jump, and best there
  double low = 0, high = 0;  // the nearest jumps, or the interval's ends
};

struct State {
  std::vector<double> borders;
  std::vector<Moments> cells;
  std::vector<BorderView> views;
  double error = 0;
  double worst_residual = 0;
};

class Polisher {
 public:
  Polisher(const WeightedTarget& target, const StepMesh& mesh) : target_(target), mesh_(mesh) {}

  State look(std::vector<double> borders) const {
    State state;
    state.borders = std::move(borders);
    integrate_cells(state);
    for (const Moments& cell : state.cells) state.error += cell.spread;
    state.views.resize(state.borders.size());
    for (std::size_t j = 0; j < state.borders.size(); ++j) {
      state.views[j] = view(state, j);
      state.worst_residual = std::max(state.worst_residual, std::abs(state.views[j].residual));
    }
    return state;
  }

 private:
  // The panel that holds x; on an edge, the one to its left.
  std::size_t panel_of(double x) const {
    const auto found = std::lower_bound(mesh_.edges.begin(), mesh_.edges.end(), x);
    return std::max<std::ptrdiff_t>(found - mesh_.edges.begin(), 1) - 1;
  }

  void integrate_cells(State& state) const {
    Moments cell;
    std::size_t panel = 0;
    double from = mesh_.edges.front();
    const auto finish_panel = [&] {  // the rest of the current panel
      const double high = mesh_.edges[panel + 1];
      if (from == mesh_.edges[panel])
        cell = merge(cell, mesh_.panels[panel]);
      else if (from < high)
        cell = merge(cell, target_.integrate(from, high));
      from = high;
      ++panel;
    };
    for (const double border : state.borders) {
      while (mesh_.edges[panel + 1] <= border) finish_panel();
      if (from < border) cell = merge(cell, target_.integrate(from, border));
      from = border;
      state.cells.push_back(cell);
      cell = {};
    }
    while (panel < mesh_.panels.size()) finish_panel();
    state.cells.push_back(cell);
  }

  // The central difference inside the panel, whose width knows the scale on which g changes.
  double slope_in_panel(std::size_t panel, double x) const {
    const double low = mesh_.edges[panel], high = mesh_.edges[panel + 1];
    const double step = 1e-3 * (high - low);
    const double a = std::max(x - step, low), b = std::min(x + step, high);
    return (mesh_.value_in_panel(target_, panel, b) - mesh_.value_in_panel(target_, panel, a)) /
           (b - a);
  }

  BorderView view(const State& state, std::size_t j) const {
    const double border = state.borders[j];
    const double left_level = state.cells[j].mean, right_level = state.cells[j + 1].mean;
    const double middle = (left_level + right_level) / 2;
    std::size_t panel = panel_of(border);
    const bool on_jump = border == mesh_.edges[panel + 1] && mesh_.jumps[panel + 1];
    BorderView result;
    result.weight = target_.weight_at(border);
    if (on_jump) {
      // The error falls to the right where `rise` * r(b+) < 0, and to the left where
      // `rise` * r(b-) > 0. Otherwise the border is best where it is.
      const double rise = right_level - left_level;
      const double below = rise * (mesh_.value_in_panel(target_, panel, border) - middle);
      const double above = rise * (mesh_.value_in_panel(target_, panel + 1, border) - middle);
      result.stays = above >= 0 && below <= 0;
      if (above < 0 && -above >= below) ++panel;
    }
    result.value = mesh_.value_in_panel(target_, panel, border);
    result.slope = slope_in_panel(panel, border);
    result.residual = result.stays ? 0 : result.value - middle;
    std::size_t first = panel, last = panel + 1;
    while (first > 0 && !mesh_.jumps[first]) --first;
    while (last < mesh_.panels.size() && !mesh_.jumps[last]) ++last;
    result.low = mesh_.edges[first];
    result.high = mesh_.edges[last];
    return result;
  }

  const WeightedTarget& target_;
  const StepMesh& mesh_;
};

// d(level on the border's left, right) / d border.
double left_level_slope(const State& s, std::size_t j) {
  return s.views[j].weight * (s.views[j].value - s.cells[j].mean) / s.cells[j].mass;
}
double right_level_slope(const State& s, std::size_t j) {
  return -s.views[j].weight * (s.views[j].value - s.cells[j + 1].mean) / s.cells[j + 1].mass;
}

double diagonal(const State& s, std::size_t j) {
  return s.views[j].slope - (left_level_slope(s, j) + right_level_slope(s, j)) / 2;
}

// Solves the tridiagonal Newton system by elimination without pivoting: where that meets a bad
// pivot the step comes out wild or NaN, fails the descent test below and is not taken.
std::vector<double> newton_step(const State& s) {
  const std::size_t n = s.borders.size();
  std::vector<double> upper(n), step(n);
  for (std::size_t j = 0; j < n; ++j) {
    double pivot = 1, right = 0;
    if (!s.views[j].stays) {
      const double lower = j > 0 ? -right_level_slope(s, j - 1) / 2 : 0;
      upper[j] = j + 1 < n ? -left_level_slope(s, j + 1) / 2 : 0;
      pivot = diagonal(s, j) - (j > 0 ? lower * upper[j - 1] : 0);
      right = -s.views[j].residual - (j > 0 ? lower * step[j - 1] : 0);
    }
    upper[j] /= pivot;
    step[j] = right / pivot;
  }
  for (std::size_t j = n - 1; j-- > 0;) step[j] -= upper[j] * step[j + 1];
  return step;
}

// Each border on its own, downhill: slower, but always a descent.
std::vector<double> downhill_step(const State& s) {
  std::vector<double> step(s.borders.size());
  for (std::size_t j = 0; j < step.size(); ++j) {
    const double rise = s.cells[j + 1].mean - s.cells[j].mean;
    const double curvature = std::max(std::abs(diagonal(s, j)), std::numeric_limits<double>::min());
    step[j] = -std::copysign(1.0, rise) * s.views[j].residual / curvature;
  }
  return step;
}

// The error's change along the step, to first order, is negative (false for NaN).
bool descends(const State& s, const std::vector<double>& step) {
  double slope = 0;
  for (std::size_t j = 0; j < step.size(); ++j)
    slope +=
        s.views[j].weight * (s.cells[j + 1].mean - s.cells[j].mean) * s.views[j].residual * step[j];
  return slope < 0;
}

// Borders moved by `fraction` of the step, none across a jump.
std::vector<double> moved(const State& s, const std::vector<double>& step, double fraction) {
  std::vector<double> borders = s.borders;
  for (std::size_t j = 0; j < borders.size(); ++j)
    if (!s.views[j].stays)
      borders[j] = std::clamp(borders[j] + fraction * step[j], s.views[j].low, s.views[j].high);
  return borders;
}

// Still a table: no gap has lost more than nine tenths of its width.
bool keeps_order(const StepMesh& mesh, const State& s, const std::vector<double>& borders) {
  for (std::size_t j = 0; j <= borders.size(); ++j) {
    const bool first = j == 0, last = j == borders.size();
    const double old_low = first ? mesh.edges.front() : s.borders[j - 1];
    const double new_low = first ? mesh.edges.front() : borders[j - 1];
    const double old_high = last ? mesh.edges.back() : s.borders[j];
    const double new_high = last ? mesh.edges.back() : borders[j];
    if (!(new_high - new_low > 0.1 * (old_high - old_low))) return false;
  }
  return true;
}

// Halves the step until the error is smaller, or equal to rounding with a smaller residual.
bool advance(const Polisher& polisher, const StepMesh& mesh, State& state,
             const std::vector<double>& step) {
  if (!descends(state, step)) return false;
  double fraction = 1;
  for (int i = 0; i < kMaxHalvings; ++i, fraction /= 2) {
    std::vector<double> borders = moved(state, step, fraction);
    if (borders == state.borders) return false;
    if (!keeps_order(mesh, state, borders)) continue;
    State next = polisher.look(std::move(borders));
    const bool has_mass = std::all_of(next.cells.begin(), next.cells.end(),
                                      [](const Moments& cell) { return cell.mass > 0; });
    const bool better = next.error < state.error * (1 - 1e-12);
    const bool closer =
        next.error <= state.error * (1 + 1e-13) && next.worst_residual < state.worst_residual;
    if (has_mass && (better || closer)) {
      state = std::move(next);
      return true;
    }
  }
  return false;
}

}  // namespace

PolishedSteps polish_steps(const WeightedTarget& target, const StepMesh& mesh,
                           std::vector<double> borders) {
  const Polisher polisher(target, mesh);
  State state = polisher.look(std::move(borders));
  for (int i = 0; i < kMaxIterations; ++i) {
    if (state.worst_residual <= 1e-14 * mesh.target_scale) break;
    if (!advance(polisher, mesh, state, newton_step(state)) &&
        !advance(polisher, mesh, state, downhill_step(state)))
      break;
  }
  PolishedSteps result{state.borders, {}, state.error};
  for (const Moments& cell : state.cells) result.levels.push_back(cell.mean);
  return result;
}

}  // namespace slimgrad
