#include "math/fewbit/step_mesh.h"

#include <algorithm>
#include <array>
#include <boost/math/quadrature/gauss.hpp>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace slimgrad {
namespace {

constexpr std::string_view kOp = "steps";
using Gauss = boost::math::quadrature::gauss<double, 10>;
constexpr std::size_t kNumPoints = 10;

// A function that is not smooth where it says it is would be bisected for ever.
constexpr std::size_t kMaxPanels = 8192;
constexpr int kMaxRounds = 48;
// No panel has more than this share of the whole variation, so that a border can be placed anywhere
// by integrating one panel's part.
constexpr double kPanelShare = 1.0 / 640;

struct Panel {
  double low, high;
  Moments moments;
  bool settled = false;
};

// How much the target varies in a panel. For a nearly linear g, spread = g'^2 w h^3 / 12, so its
// cube root is proportional to (g'^2 w)^(1/3) h: additive over panels, and exactly the density in
// which the borders of a fine optimal table lie.
double variation(const StepMesh& mesh, const Moments& panel) {
  return mesh.negligible(panel, panel.mass) ? 0 : std::cbrt(panel.spread);
}

double total_variation(const StepMesh& mesh) {
  double total = 0;
  for (const Moments& panel : mesh.panels) total += variation(mesh, panel);
  return total;
}

// The interval cut at the breaks, each part graded towards both its ends until pieces are shorter
// than the unit scale on which activations change. Else a wide interval's first panels could miss
// all that happens near zero.
std::vector<double> first_edges(std::span<const double> breaks, double low, double high) {
  std::vector<double> cuts{low, high};
  for (const double at : breaks)
    if (at > low && at < high) cuts.push_back(at);
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());

  std::vector<double> edges = cuts;
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    double length = (cuts[i + 1] - cuts[i]) / 2;
    edges.push_back(cuts[i] + length);
    while (length > 0.125) {
      length /= 2;
      edges.push_back(cuts[i] + length);
      edges.push_back(cuts[i + 1] - length);
    }
  }
  std::sort(edges.begin(), edges.end());
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
  return edges;
}

// One round of bisection over the panels for which `wants` says so. Returns whether any was cut.
template <typename Wants, typename Settles>
bool bisect(const WeightedTarget& target, std::vector<Panel>& panels, Wants wants,
            Settles settles) {
  std::vector<Panel> next;
  next.reserve(2 * panels.size());
  for (const Panel& panel : panels) {
    const double middle = panel.low + (panel.high - panel.low) / 2;
    if (!wants(panel) || !(middle > panel.low && middle < panel.high)) {
      next.push_back(panel);
      continue;
    }
    const Moments left = target.integrate(panel.low, middle);
    const Moments right = target.integrate(middle, panel.high);
    const bool settled = settles(panel, merge(left, right));
    next.push_back({panel.low, middle, left, settled});
    next.push_back({middle, panel.high, right, settled});
  }
  const bool any = next.size() > panels.size();
  panels = std::move(next);
  return any;
}

void summarise(const std::vector<Panel>& panels, StepMesh& mesh) {
  mesh.edges.assign(1, panels.front().low);
  mesh.panels.clear();
  mesh.mass = mesh.target_scale = 0;
  for (const Panel& panel : panels) {
    mesh.edges.push_back(panel.high);
    mesh.panels.push_back(panel.moments);
    mesh.mass += panel.moments.mass;
    mesh.target_scale = std::max(mesh.target_scale, std::abs(panel.moments.mean));
  }
}

// Bisect until a panel and its two halves agree in all three moments.
void settle_quadrature(const WeightedTarget& target, std::vector<Panel>& panels, StepMesh& mesh) {
  for (int round = 0; round < kMaxRounds && panels.size() < kMaxPanels; ++round) {
    const double scale = mesh.target_scale;
    const double tolerance = 1e-14 * scale * scale * mesh.mass;
    const auto settles = [&](const Panel& panel, const Moments& halves) {
      const Moments& whole = panel.moments;
      return std::abs(whole.mass - halves.mass) * scale * scale <= tolerance &&
             std::abs(whole.mass * whole.mean - halves.mass * halves.mean) * scale <= tolerance &&
             std::abs(whole.spread - halves.spread) <= tolerance;
    };
    const bool any = bisect(
        target, panels, [](const Panel& p) { return !p.settled; }, settles);
    summarise(panels, mesh);
    if (!any) return;
  }
}

// Bisect until no panel has too large a share of the variation.
void even_out(const WeightedTarget& target, std::vector<Panel>& panels, StepMesh& mesh) {
  for (int round = 0; round < kMaxRounds && panels.size() < kMaxPanels; ++round) {
    const double most = kPanelShare * total_variation(mesh);
    const bool any = bisect(
        target, panels, [&](const Panel& p) { return variation(mesh, p.moments) > most; },
        [](const Panel&, const Moments&) { return true; });
    summarise(panels, mesh);
    if (!any) return;
  }
}

}  // namespace

double WeightedTarget::derivative_at(double x) const {
  const double value = derivative(x);
  check(std::isfinite(value), kOp, "a finite derivative", value, " at ", x);
  return value;
}

double WeightedTarget::weight_at(double x) const {
  const double value = weight(x);
  check(std::isfinite(value) && value >= 0, kOp, "a finite, non-negative weight", value, " at ", x);
  return value;
}

Moments WeightedTarget::integrate(double low, double high) const {
  const double centre = low + (high - low) / 2, half = (high - low) / 2;
  std::array<double, kNumPoints> values, weights;
  double mass = 0, first = 0, plain = 0;
  for (std::size_t i = 0; i < kNumPoints; ++i) {
    const double offset = half * Gauss::abscissa()[i / 2];
    const double x = i % 2 == 0 ? centre + offset : centre - offset;
    values[i] = derivative_at(x);
    weights[i] = half * Gauss::weights()[i / 2] * weight_at(x);
    mass += weights[i];
    first += weights[i] * values[i];
    plain += values[i];
  }
  Moments moments{mass, mass > 0 ? first / mass : plain / kNumPoints, 0};
  for (std::size_t i = 0; i < kNumPoints; ++i) {
    const double deviation = values[i] - moments.mean;
    moments.spread += weights[i] * deviation * deviation;
  }
  return moments;
}

double StepMesh::value_in_panel(const WeightedTarget& target, std::size_t panel, double x) const {
  const double low = edges[panel], high = edges[panel + 1];
  return target.derivative_at(std::clamp(x, std::nextafter(low, high), std::nextafter(high, low)));
}

StepMesh make_step_mesh(const WeightedTarget& target, std::span<const double> breaks, double low,
                        double high) {
  const std::vector<double> edges = first_edges(breaks, low, high);
  std::vector<Panel> panels;
  for (std::size_t i = 0; i + 1 < edges.size(); ++i)
    panels.push_back({edges[i], edges[i + 1], target.integrate(edges[i], edges[i + 1])});
  StepMesh mesh;
  summarise(panels, mesh);
  settle_quadrature(target, panels, mesh);
  check(mesh.mass > 0, kOp, "a weight that is positive somewhere", "zero on ", low, " .. ", high);
  even_out(target, panels, mesh);

  mesh.jumps.assign(mesh.edges.size(), false);
  for (const double at : breaks) {
    const auto found = std::lower_bound(mesh.edges.begin(), mesh.edges.end(), at);
    const std::size_t edge = found - mesh.edges.begin();
    if (edge == 0 || edge + 1 >= mesh.edges.size() || *found != at) continue;
    const double step =
        mesh.value_in_panel(target, edge, at) - mesh.value_in_panel(target, edge - 1, at);
    mesh.jumps[edge] = std::abs(step) > 1e-10 * mesh.target_scale;
  }
  return mesh;
}

std::vector<std::size_t> choose_nodes(const StepMesh& mesh, std::size_t num_cells) {
  const double quota = total_variation(mesh) / static_cast<double>(num_cells);
  std::vector<std::size_t> nodes{0};
  Moments cell;
  for (std::size_t edge = 1; edge < mesh.panels.size(); ++edge) {
    cell = merge(cell, mesh.panels[edge - 1]);
    // The spread of the cell with the next panel, not the sum of theirs: so a jump that was not
    // declared, and that bisection has driven between two panels, separates cells too.
    if (mesh.jumps[edge] || variation(mesh, merge(cell, mesh.panels[edge])) > quota) {
      nodes.push_back(edge);
      cell = {};
    }
  }
  nodes.push_back(mesh.panels.size());
  return nodes;
}

}  // namespace slimgrad
